"""Where a text ends: end ids, stop strings and the cap, applied token by token.

Every rule looks at one emitted token at a time and at nothing else, so a text ends at the same token however the
tokens were cut into rounds. Knows nothing of trees, caches or the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jetspec_engine.records import SamplingParams


@dataclass(frozen=True, kw_only=True)
class EndRules:
    """When one request ends.

    Attributes:
        end_ids: token ids that end the text: the stop ids, and the model's EOS unless it is ignored.
        min_new_tokens: until this many tokens are out, end ids are masked and stop strings are not looked for.
        cap: most tokens to emit: the request's own maximum, cut to what the context leaves.
    """

    end_ids: frozenset[int]
    min_new_tokens: int
    cap: int

    @classmethod
    def of(cls, sampling: SamplingParams, eos_token_ids: Sequence[int], room: int) -> "EndRules":
        """Resolve a request's rules; ``room`` is how many tokens the context leaves after the prompt."""
        eos = () if sampling.ignore_eos else tuple(eos_token_ids)
        return cls(
            end_ids=frozenset(sampling.stop_token_ids) | frozenset(eos),
            min_new_tokens=sampling.min_new_tokens,
            cap=min(sampling.max_new_tokens, room),
        )

    def may_end_after(self, num_emitted: int) -> bool:
        """Say whether the ``num_emitted``-th token may be the one that ends the text (the cap aside)."""
        return num_emitted > self.min_new_tokens


class StopScanner:
    """Holds back text that may begin a stop string and finds the first one that is complete.

    Args:
        stops: the stop strings, none empty.
        is_trimmed: leave the stop string out of the text.
    """

    def __init__(self, stops: Sequence[str], *, is_trimmed: bool = True) -> None:
        self._stops = tuple(stops)
        self._is_trimmed = is_trimmed
        self._held = ""
        self._ready: list[str] = []

    def push(self, text: str, *, may_match: bool = True) -> str | None:
        """Append text and return the stop string it completed, if any.

        Only a match that ends inside the new text counts. Of several, the one that begins first wins, then the one
        listed first. With ``may_match`` False the text passes whatever it holds.
        """
        if not self._stops:
            self._ready.append(text)
            return None
        seen = len(self._held)
        text = self._held + text
        if may_match:
            found = [(text.find(stop, max(0, seen - len(stop) + 1)), i) for i, stop in enumerate(self._stops)]
            start, index = min((hit for hit in found if hit[0] >= 0), default=(-1, -1))
            if start >= 0:
                stop = self._stops[index]
                self._ready.append(text[: start if self._is_trimmed else start + len(stop)])
                self._held = ""
                return stop
        num_held = self._longest_opening(text)
        self._ready.append(text[: len(text) - num_held])
        self._held = text[len(text) - num_held :]
        return None

    def take(self) -> str:
        """Return the text that can be shown and has not been returned before."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def release(self) -> None:
        """Let go of what is held back: no more text will come."""
        self._ready.append(self._held)
        self._held = ""

    def _longest_opening(self, text: str) -> int:
        """Return the length of the longest end of the text that may begin a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for length in range(longest, 0, -1):
            ending = text[-length:]
            if any(stop.startswith(ending) for stop in self._stops):
                return length
        return 0
