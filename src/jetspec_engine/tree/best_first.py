"""Best-first tree: always the likeliest prefix that is not in the tree yet, one node at a time.

This maximises the summed prefix probability, so the expected accept length, for a budget. The order of prefixes is
total and the same in every implementation: larger cumulative log-probability (summed in float64 from the root on)
first; at a tie the shallower one; then the one whose parent comes first; then the lower rank. Nodes are numbered in
that order. Knows nothing of logits: it starts from candidates (see ``ranked`` for odd values).

Source: the order is DDTree's; the spine option is ours.
"""

from heapq import heappop, heappush

from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.tree.growing import GrowingTree
from jetspec_engine.tree.ranked import ranked_candidates
from jetspec_engine.tree.record import DraftTree


def build_best_first(anchor: int, candidates: Candidates, config: TreeConfig) -> DraftTree:
    """Build the tree of the likeliest prefixes.

    Args:
        anchor: token id of the root.
        candidates: (D, W) on the CPU; at most ``config.width`` are used per depth.
        config: width, budget and keep_spine. Width 1 gives the chain, budget 1 the root alone. With keep_spine the
            top-1 chain is kept whole, as far as the budget reaches, and the likeliest other prefixes fill the rest.

    Returns:
        At most ``config.resolve_budget(D)`` nodes; fewer when the candidates run out.

    Raises:
        ConfigError: candidates of a wrong shape.
    """
    ids, logprobs = ranked_candidates(candidates, config.width)
    tree = GrowingTree(anchor, ids, logprobs)
    room = config.resolve_budget(len(ids)) - 1
    if config.keep_spine:
        room -= tree.reserve_spine(room)
    # (cost, depth, parent, rank) sorts in exactly the order above, because parents are numbered in that order.
    heap = [(-logprobs[0][0], 1, 0, 0)] if ids and ids[0] else []
    depth_count, costs, add = len(ids), tree.costs, tree.add
    while heap and room > 0:
        cost, depth, parent, rank = heappop(heap)
        node = len(costs)
        if not add(depth, parent, rank, cost):
            room -= 1
        row = logprobs[depth - 1]
        if rank + 1 < len(row):
            heappush(heap, (costs[parent] - row[rank + 1], depth, parent, rank + 1))
        if depth < depth_count and logprobs[depth]:
            heappush(heap, (cost - logprobs[depth][0], depth + 1, node, 0))
    return tree.finish()
