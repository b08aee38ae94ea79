"""Where a text has to end, worked out by plain rules from the text without an end. Knows nothing of engines."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# A private-use character that no text holds, so a stop string with it is never complete.
NEVER = "\ue000"


@dataclass(frozen=True, kw_only=True)
class EndCase:
    """A request and what it must give.

    Attributes:
        options: ``SamplingParams`` fields, EOS aside, which is ignored.
        ids: the emitted ids.
        text: the emitted text; None where it is not checked.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    ids: Sequence[int]
    text: str | None = None


def end_cases(endless: Sequence[int], spelled: Sequence[str | None], special_ids: Collection[int]) -> Iterator[EndCase]:
    """Yield requests that end by cap, stop id and stop string, at several places.

    Args:
        endless: what is emitted when nothing ends the text, 40 tokens or more.
        spelled: the letters that each of them adds to the text; None where a character goes on.
        special_ids: ids that are left out of the text.
    """
    shown = [letters or "" for letters in spelled]
    for cap in (7, 10):
        # The last letter could begin the stop string, so it is held back until the end.
        stop = (shown[cap - 1] or NEVER) + NEVER
        options = {"max_new_tokens": cap, "stop": (stop,)}
        # A text that ends within a character is not spelled here.
        text = None if spelled[cap - 1] is None else "".join(shown[:cap])
        yield EndCase(options=options, ids=endless[:cap], text=text)
    new = [i for i in range(3, 20) if endless[i] not in endless[:i] and endless[i] not in special_ids]
    for place in new[:2]:
        yield EndCase(options={"stop_token_ids": (endless[place],)}, ids=endless[: place + 1])
    for place in (9, 13, 14):
        if shown[place - 1] and shown[place]:
            stop = shown[place - 1] + shown[place]
            length = next(count for count in range(len(shown)) if stop in "".join(shown[:count]))
            # A token may hold letters beyond the stop string.
            whole = "".join(shown[:length])
            text = whole[: whole.index(stop)]
            yield EndCase(options={"stop": (stop,)}, ids=endless[:length], text=text)


def minimum_case(endless: Sequence[int]) -> tuple[dict[str, Any], int]:
    """Return options under which the third token would end the text, but for a minimum; and that minimum."""
    minimum = 12
    return {"stop_token_ids": (endless[2],), "min_new_tokens": minimum}, minimum
