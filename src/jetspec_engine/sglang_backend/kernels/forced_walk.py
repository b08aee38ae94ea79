"""Acceptance by decree in one launch, so that a measurement with it pays no more launches than a round without it.

Equals ``tree_round.outcome`` of ``tree_round.forced``. Knows no cache.
"""

import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.sglang_backend.tree_round import Outcome
from jetspec_engine.tree.batched import TreeBatch


@triton.jit(do_not_specialize=["num_drafts", "nodes", "path_width"])  # type: ignore[untyped-decorator]
def _follow(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    tokens, depths, links, target_ids, path, counts, bonus, gained, lens, num_drafts, nodes, path_width,
    NODES: tl.constexpr, PATH: tl.constexpr,
):  # fmt: skip
    """Follow one tree's links to the first node as deep as asked, or as deep as there is."""
    request = tl.program_id(0)
    node = tl.arange(0, NODES)
    depth = tl.load(depths + request * nodes + node, mask=node < nodes, other=-1)
    reached = tl.where(depth <= num_drafts, depth, -1)
    count = tl.max(reached, 0)
    last = tl.min(tl.where(reached == count, node, NODES), 0)
    step = tl.arange(0, PATH)
    row = (request * nodes + last) * path_width
    taken = tl.load(links + row + step, mask=step <= count, other=-1).to(tl.int64)
    following = tl.load(links + row + step + 1, mask=step < count, other=0)
    wanted = tl.load(target_ids + request * nodes + last)
    emitted = tl.load(tokens + request * nodes + following, mask=step < count, other=0)
    is_column = step < path_width
    tl.store(path + request * path_width + step, taken, mask=is_column)
    tl.store(gained + request * path_width + step, tl.where(step == count, wanted, emitted), mask=is_column)
    tl.store(counts + request, count)
    tl.store(bonus + request, wanted)
    tl.store(lens + request, (count + 1).to(tl.int32))


def forced_walk(trees: TreeBatch, links: Tensor, target_ids: Tensor, num_drafts: int, *, into: Outcome) -> Outcome:
    """Accept ``num_drafts`` drafts of every tree.

    Args:
        trees: R trees of N nodes; tokens and depths are read, a row after another without gaps.
        links: (R, N, D + 1) int32 contiguous, the path to each node.
        target_ids: (R, N) int64 contiguous.
        num_drafts: as for ``tree_round.forced``, at most D.
        into: for R requests and D.

    Returns:
        ``into``, written. No host sync, no allocation.
    """
    requests, nodes, width = links.shape
    accepted = into.accepted
    _follow[(requests,)](
        trees.tokens, trees.depths, links, target_ids, accepted.path, accepted.num_correct_drafts, accepted.bonus,
        into.tokens, into.lens, num_drafts, nodes, width, NODES=triton.next_power_of_2(nodes),
        PATH=triton.next_power_of_2(width), num_warps=1 if nodes <= 256 else 4,
    )  # fmt: skip
    return into
