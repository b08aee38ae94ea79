"""What shows only once the text is there: trees hold it, rounds emit what their logits choose, and it ends in time.

Knows forwards and tokens; nothing of tensors beyond logits.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from jetspec_engine.forensics.case import Case
from jetspec_engine.forensics.findings import Finding, check_choice
from jetspec_engine.forensics.watch import Forward

Pair = tuple[int | None, int | None]


def check_text(case: Case, emitted: Sequence[int], eos: frozenset[int]) -> None:
    """Add what is wrong with the text up to the round in doubt to the case's findings.

    Args:
        case: complete; mutated.
        emitted: the tokens.
        eos: ids that end a text.
    """
    if case.decisive is None:
        return
    rounds = case.rounds[: case.rounds.index(case.decisive) + 1]
    for forward, later in zip_longest(rounds, rounds[1:]):
        case.findings += [*_tokens(case, forward, emitted), *_choice(case, forward, later, emitted)]
    case.findings += _end(case, emitted, eos)


def _tokens(case: Case, forward: Forward, emitted: Sequence[int]) -> Iterator[Finding]:
    """Yield the first committed node that does not hold the text's token."""
    ids = [*case.question.input_ids, *emitted]
    for place, node in enumerate(forward.path or (), forward.length):
        token, wanted = int(forward.tree.tokens[node]), ids[place] if place < len(ids) else None
        if token != wanted:
            detail = f"node {node} holds token {token}, the text has {wanted} at position {place}"
            yield _finding(case, forward, ("tree.tokens", node), (token, wanted), detail)
            return


def _choice(case: Case, forward: Forward, later: Forward | None, emitted: Sequence[int]) -> Iterator[Finding]:
    """Yield the first token of a round that is not what its logits choose."""
    right, path = check_choice(forward)
    if not right:
        return
    # A prompt's last chunk emits the first token; a round those after its anchor, up to the next one's.
    begin = 0 if forward.logits_from else forward.length + 1 - len(case.question.input_ids)
    end = begin + len(right) if later is None else later.length + 1 - len(case.question.input_ids)
    given: list[int | None] = list(emitted[begin:end])
    # A text may end within the last round.
    wanted = right[: len(given)] if later is None else right
    for place, (used, expected) in enumerate(zip_longest(given, wanted)):
        if used != expected:
            node = path[min(place, len(path) - 1)]
            said = "nothing" if used is None else used
            detail = f"token {begin + place}: emitted {said}, the logits of node {node} choose {expected}"
            yield _finding(case, forward, ("choice", node), (used, expected), detail)
            return


def _end(case: Case, emitted: Sequence[int], eos: frozenset[int]) -> Iterator[Finding]:
    """Yield the token with which the text should have ended."""
    cap = case.question.max_new_tokens
    over = next((place for place, token in enumerate(emitted[:-1]) if token in eos), None)
    if over is None and len(emitted) > cap:
        over = cap - 1
    if over is not None:
        last = max(
            (forward for forward in case.rounds if forward.length < len(case.question.input_ids) + over),
            key=lambda forward: forward.index,
        )
        detail = f"the text should have ended with token {over}, it has {len(emitted)} tokens"
        yield _finding(case, last, ("end", 0), (len(emitted), over + 1), detail)


def _finding(case: Case, forward: Forward, place: tuple[str, int], pair: Pair, detail: str) -> Finding:
    (tensor, row), (used, expected), number = place, pair, case.number(forward)
    return Finding(
        forward=forward.index, round=number, tensor=tensor, row=row, used=used, expected=expected, detail=detail
    )


def describe_round(case: Case, forward: Forward, emitted: Sequence[int]) -> dict[str, Any]:
    """Return the decisive round: its tree, its path, and the node of the token in doubt."""
    place = len(case.question.input_ids) + case.question.position - forward.length - 1
    if forward.logits_from:
        place = 0
    path = list(forward.path or ())
    chosen_at = path[min(place, len(path) - 1)] if path and not forward.logits_from else forward.tree.num_nodes - 1
    token = emitted[case.question.position] if case.question.position < len(emitted) else None
    children = [n for n in range(forward.tree.num_nodes) if int(forward.tree.parents[n]) == chosen_at]
    node = next((n for n in children if int(forward.tree.tokens[n]) == token), None)
    return {
        "index": case.number(forward),
        "length": forward.length,
        "chosen_at": chosen_at,
        "node": node,
        "depth": place + 1,
        "source": "prefill" if forward.logits_from else "bonus" if node is None else "draft",
        "path": path,
        "tree": {"tokens": forward.tree.tokens.tolist(), "parents": forward.tree.parents.tolist()},
    }
