"""A target's tokenizer from its folder: ``tokenizer.json`` and the chat template, without transformers.

The ``tokenizers`` library alone loads in a fraction of a second where transformers' wrapper takes several (it imports
torch) and gives the same ids. Knows no model weights. Decoding follows the tokens' bytes, without the optional
"clean up spaces" step of transformers: that step is lossy and cannot be streamed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer as RawTokenizer

from jetspec_engine.errors import ArtifactError, RequestError
from jetspec_engine.models.chat_template import ChatTemplate, find_template
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.json_file import JsonFile
from jetspec_engine.models.token_bytes import TokenBytes

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class ModelTokenizer:
    """``protocol.Tokenizer`` over a model folder. Every method may be called from any thread.

    Special tokens written out in a text are encoded as those tokens, in raw prompts and in chat contents alike: what
    transformers and SGLang do, and what a client that sends a rendered chat as a prompt relies on.

    Attributes:
        vocab_size: ids the tokenizer has; the model's own table may be larger.
        eos_token_ids: the configuration's, and the tokenizer's own end token.
        bos_token_id: the tokenizer's, else the configuration's.
        special_token_ids: ids left out by ``skip_special_tokens``.
        has_chat_template: whether ``render_chat`` can work.
    """

    def __init__(
        self,
        raw: RawTokenizer,
        settings: JsonFile | None,
        config: DecoderConfig,
        template: ChatTemplate | None,
        where: str,
    ) -> None:
        # Truncation and padding saved in the file are for training; a prompt is never cut silently.
        raw.no_truncation()
        raw.no_padding()
        self._raw = raw
        self._template = template
        self._bytes = TokenBytes(raw, where=where)
        added = raw.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size: int = raw.get_vocab_size(with_added_tokens=True)
        special = special_tokens(settings)
        bos = raw.token_to_id(special["bos_token"]) if "bos_token" in special else None
        eos = raw.token_to_id(special["eos_token"]) if "eos_token" in special else None
        self.bos_token_id: int | None = config.bos_token_id if bos is None else bos
        self.eos_token_ids = tuple(dict.fromkeys([*config.eos_token_ids, *([] if eos is None else [eos])]))
        self.has_chat_template = template is not None
        self._adds_bos = settings is not None and settings.flag("add_bos_token", default=False)

    @classmethod
    def from_folder(cls, folder: str | Path, config: DecoderConfig) -> Self:
        """Load a folder's tokenizer.

        Args:
            folder: a Hugging Face model folder.
            config: the same folder's configuration.

        Raises:
            ArtifactError: no tokenizer.json, a broken file, an id beyond the model's vocabulary, or a chat template
                that does not compile.
        """
        folder = Path(folder)
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            hint = "save it in the fast format: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
            raise ArtifactError(f"{path}: missing, expected the model's tokenizer", hint=hint)
        try:
            raw = RawTokenizer.from_file(str(path))
        # The library raises bare exceptions for whatever is wrong with the file.
        except Exception as error:
            raise ArtifactError(f"{path}: not a readable tokenizer: {error}") from error
        largest = max(raw.get_vocab(with_added_tokens=True).values(), default=-1)
        if largest >= config.vocab_size:
            raise ArtifactError(
                f"{path}: token id {largest}, expected ids below the model's vocab_size {config.vocab_size}"
            )
        settings = JsonFile.read(folder / SETTINGS_FILE) if (folder / SETTINGS_FILE).is_file() else None
        found = find_template(folder, settings)
        template = ChatTemplate(found[0], special_tokens(settings), where=found[1]) if found else None
        return cls(raw, settings, config, template, str(path))

    def encode(self, text: str) -> list[int]:
        """Encode a raw prompt as the model's own tokenizer does, with its default special tokens.

        Raises:
            RequestError: the text is not valid Unicode (a lone surrogate).
        """
        ids = self._encode(text, add_special_tokens=True)
        if self._adds_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """Encode text that already holds its special tokens (a rendered chat). Raises RequestError as ``encode``."""
        return self._encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode ids as a text of its own; bytes that are no UTF-8 show as U+FFFD, unknown ids as nothing."""
        joined = b"".join(self.token_bytes(token_id, skip_special_tokens=skip_special_tokens) for token_id in token_ids)
        if self._bytes.strips_first_space:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """Return the bytes one token adds to a text; empty for a skipped special token or an unknown id."""
        if skip_special_tokens and token_id in self.special_token_ids:
            return b""
        return self._bytes.get(token_id)

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Apply the chat template with a generation prompt.

        Raises:
            RequestError: the model has no chat template, or the template refuses the messages.
        """
        if self._template is None:
            raise RequestError("messages: this model has no chat template", hint="send a prompt to completions instead")
        return self._template.render(messages)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            # The library answers a lone surrogate with a bare TypeError.
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"text: {text[error.start]!r} at {error.start}, expected valid Unicode") from error
        ids: list[int] = self._raw.encode(text, add_special_tokens=add_special_tokens).ids
        return ids


def special_tokens(settings: JsonFile | None) -> dict[str, str]:
    """Return the named special tokens of tokenizer_config.json; each may be a string or an object with a content."""
    found = {}
    for name in SPECIAL_NAMES if settings is not None else ():
        value = settings.values.get(name) if settings is not None else None
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found
