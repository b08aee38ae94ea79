"""The published tree rules: pop the likeliest node, add all of its children at once, up to a cap.

``accum_logp`` caps at the width; ``top2gap`` caps by how sure the draft is at that depth. Kept for comparison: with
W = 8 and B = 16 accum_logp never passes depth 2, and a large budget does not keep the linear path unless the spine is
kept. Knows nothing of logits: it starts from candidates (see ``ranked`` for odd values).

Ties: the likeliest node (cumulative log-probability in float64) is popped first, then the shallower, then the older.

Source: the tree rules of JetSpec (hao-ai-lab/JetSpec, tree/), shapes only; the spine option is ours.
"""

import math
from heapq import heappop, heappush

from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.tree.growing import GrowingTree
from jetspec_engine.tree.ranked import ranked_candidates
from jetspec_engine.tree.record import DraftTree


def build_top2gap(anchor: int, candidates: Candidates, config: TreeConfig) -> DraftTree:
    """Build the tree whose fan-out shrinks where the draft is sure.

    Args:
        anchor: token id of the root.
        candidates: (D, W) on the CPU; at most ``config.width`` are used per depth.
        config: width, budget, beta, g0 and keep_spine.

    Returns:
        At most ``config.resolve_budget(D)`` nodes in the order they were added.

    Raises:
        ConfigError: candidates of a wrong shape.
    """
    ids, logprobs = ranked_candidates(candidates, config.width)
    width = min(config.width, candidates.tokens.shape[1])
    caps = [gap_cap(_gap(row), width, config.beta, config.g0) for row in logprobs]
    return _build(anchor, ids, logprobs, caps, config)


def build_accum_logp(anchor: int, candidates: Candidates, config: TreeConfig) -> DraftTree:
    """Build the tree that gives every popped node all its candidates.

    Args, Returns, Raises: as ``build_top2gap``; beta and g0 are not used.
    """
    ids, logprobs = ranked_candidates(candidates, config.width)
    return _build(anchor, ids, logprobs, [config.width] * len(ids), config)


def gap_cap(gap: float, width: int, beta: float, g0: float) -> int:
    """Return top2gap's number of children: ``max(1, round(W * sigmoid(-beta * (gap - g0))))``.

    Args:
        gap: difference of the two best log-probabilities, >= 0; infinite or NaN (no second candidate) gives 1.
        width: W >= 1.
        beta: slope; any finite number.
        g0: gap at which half of the width is kept, any finite number.

    Returns:
        1..W; halves round to even, as the published rule does.
    """
    if not math.isfinite(gap):
        return 1
    return max(1, round(width * _sigmoid(-beta * (gap - g0))))


def _sigmoid(value: float) -> float:
    """Logistic function, by the branch whose exponential cannot overflow."""
    if value >= 0.0:
        return 1.0 / (1.0 + math.exp(-value))
    small = math.exp(value)
    return small / (1.0 + small)


def _gap(row: list[float]) -> float:
    return row[0] - row[1] if len(row) > 1 else math.inf


def _build(
    anchor: int, ids: list[list[int]], logprobs: list[list[float]], caps: list[int], config: TreeConfig
) -> DraftTree:
    tree = GrowingTree(anchor, ids, logprobs)
    room = config.resolve_budget(len(ids)) - 1
    if config.keep_spine:
        room -= tree.reserve_spine(room)
    heap = [(0.0, 0, 0)]
    while heap and room > 0:
        cost, depth, node = heappop(heap)
        if depth == len(ids):
            continue
        for rank, logprob in enumerate(logprobs[depth][: caps[depth]]):
            if room == 0:
                break
            child = len(tree.tokens)
            if not tree.add(depth + 1, node, rank, cost - logprob):
                room -= 1
            heappush(heap, (cost - logprob, depth + 1, child))
    return tree.finish()
