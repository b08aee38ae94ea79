"""The bytes each token adds to a text, by the tokenizer's kind of decoder.

Two kinds cover the supported families: byte-level vocabularies, which spell every byte as one printable character
(Llama 3, Qwen, SmolLM), and SentencePiece-like ones, which spell a space as U+2581 and a lone byte as ``<0xE2>``
(Llama 2, Mistral). Knows no text and no model. Source of the byte spelling: the GPT-2 tokenizer.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer

from jetspec_engine.errors import ArtifactError

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_MARK = "\u2581"


def byte_spelling() -> dict[str, int]:
    """Return the byte each printable character stands for in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


class TokenBytes:
    """Bytes of a tokenizer's tokens, found once each. Safe to use from several threads.

    Attributes:
        strips_first_space: whether a text's decoding drops one leading space.

    Raises:
        ArtifactError: a decoder of another kind.
    """

    def __init__(self, tokenizer: Tokenizer, *, where: str) -> None:
        steps = _decoder_steps(tokenizer)
        kinds = [step.get("type") for step in steps]
        self._is_byte_level = "ByteLevel" in kinds
        is_marked = "Metaspace" in kinds or any(SPACE_MARK in str(step.get("pattern")) for step in steps)
        if not self._is_byte_level and not is_marked:
            raise ArtifactError(f"{where}: decoder: {kinds}, expected a byte-level or a SentencePiece-like one")
        self.strips_first_space = not self._is_byte_level and any(_strips_first_space(step) for step in steps)
        self._spelling = byte_spelling()
        self._added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        self._tokenizer = tokenizer
        self._found: dict[int, bytes] = {}

    def get(self, token_id: int) -> bytes:
        """Return a token's bytes, empty for an id that the tokenizer does not have."""
        found = self._found.get(token_id)
        if found is None:
            token = self._added.get(token_id) or self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
            found = b"" if token is None else self._spell(token)
            self._found[token_id] = found
        return found

    def _spell(self, token: str) -> bytes:
        if self._is_byte_level:
            try:
                return bytes([self._spelling[character] for character in token])
            except KeyError:  # an added token, written as it is
                return token.encode()
        byte_token = BYTE_TOKEN.fullmatch(token)
        return bytes.fromhex(byte_token[1]) if byte_token else token.replace(SPACE_MARK, " ").encode()


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Return the settings of the tokenizer's decoder, a sequence as its parts."""
    if tokenizer.decoder is None:
        return []
    settings: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps: list[dict[str, Any]] = settings["decoders"] if settings.get("type") == "Sequence" else [settings]
    return steps


def _strips_first_space(step: dict[str, Any]) -> bool:
    if step.get("type") == "Strip":
        return bool(step.get("content") == " " and step.get("start", 0) > 0)
    return bool(step.get("type") == "Metaspace" and step.get("prepend_scheme") in ("always", "first"))
