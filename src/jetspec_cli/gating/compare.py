"""Where two generations first differ. Knows nothing of why."""

from collections.abc import Sequence
from dataclasses import dataclass

from jetspec_cli.serving.generation import Generation


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first difference.

    Attributes:
        unit: token_ids or text.
        position: index of the first differing token or character; the shorter length when one is a prefix.
        oracle, candidate: the differing token ids or characters; None where a side had ended.
        detail: one line.
    """

    unit: str
    position: int
    oracle: int | str | None
    candidate: int | str | None
    detail: str


def unit_of(oracle: Generation, candidate: Generation) -> str:
    """Return what can be compared: token_ids where both sides have them, else text."""
    return "text" if oracle.token_ids is None or candidate.token_ids is None else "token_ids"


def first_difference(oracle: Generation, candidate: Generation) -> Difference | None:
    """Return the first difference, or None when the two are identical.

    Token ids are compared first, then the text and the reason why it ended, which the same ids must share.
    """
    unit = unit_of(oracle, candidate)
    sides = (_content(oracle, unit), _content(candidate, unit))
    position = first_position(*sides)
    if position is not None:
        left, right = (side[position] if position < len(side) else None for side in sides)
        name = "token" if unit == "token_ids" else "character"
        detail = f"{name} {position}: {_show(left)} from the oracle, {_show(right)} from the tree"
        return Difference(unit=unit, position=position, oracle=left, candidate=right, detail=detail)
    if oracle.text != candidate.text:
        position = first_position(oracle.text, candidate.text) or 0
        detail = f"same token ids, texts differ at character {position}"
        return Difference(unit="text", position=position, oracle=None, candidate=None, detail=detail)
    if oracle.finish != candidate.finish:
        detail = f"same text, ended by {oracle.finish!r} at the oracle and {candidate.finish!r} at the tree"
        return Difference(unit=unit, position=len(sides[0]), oracle=None, candidate=None, detail=detail)
    return None


def first_position(left: Sequence[object] | str, right: Sequence[object] | str) -> int | None:
    """Return the first index at which two sequences differ (the shorter length for a prefix), or None."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def _content(generation: Generation, unit: str) -> tuple[int, ...] | str:
    return generation.token_ids or () if unit == "token_ids" else generation.text


def _show(value: int | str | None) -> str:
    return "the end" if value is None else repr(value)
