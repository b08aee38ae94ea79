"""Text from token ids as they come: certain text at once, unfinished characters held back.

Knows no vocabulary: a tokenizer says which bytes a token adds. Costs O(bytes) in all, whatever the ids.
"""

import codecs
from collections.abc import Sequence

from jetspec_engine.protocol import Tokenizer


class Detokenizer:
    """The text of one growing sequence of ids.

    The concatenated deltas equal ``tokenizer.decode`` of all ids, except that the space some tokenizers drop at the
    start of a text is kept: the ids continue a prompt. Bytes that can no longer become a character show as U+FFFD; a
    character that is merely unfinished is held back until it completes or ``finish`` is called.

    Args:
        tokenizer: gives each token's bytes.
        skip_special_tokens: leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """Append ids and return the text that became certain, possibly empty."""
        token_bytes = self._tokenizer.token_bytes
        added = b"".join(token_bytes(token_id, skip_special_tokens=self._skips_special) for token_id in token_ids)
        return self._decoder.decode(added)

    def finish(self) -> str:
        """Return what is left, an unfinished character as U+FFFD; later pushes begin a new text."""
        rest = self._decoder.decode(b"", True)
        self._decoder.reset()
        return rest
