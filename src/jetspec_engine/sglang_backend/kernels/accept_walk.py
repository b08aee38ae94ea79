"""The greedy accept walk in one launch: one program a request steps from the root while the target agrees.

Equals ``tree/accept_batched.py`` and ``tree_round.outcome``. Knows no cache.
"""

import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.sglang_backend.tree_round import Outcome
from jetspec_engine.tree.batched import TreeBatch


@triton.jit(do_not_specialize=["nodes", "path_width"])  # type: ignore[untyped-decorator]
def _walk(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    tokens, parents, target_ids, path, counts, bonus, gained, lens, nodes, path_width,
    NODES: tl.constexpr, PATH: tl.constexpr,
):  # fmt: skip
    """Walk one tree."""
    request = tl.program_id(0)
    node = tl.arange(0, NODES)
    is_node = node < nodes
    token = tl.load(tokens + request * nodes + node, mask=is_node, other=-1)
    parent = tl.load(parents + request * nodes + node, mask=is_node, other=-1)
    step = tl.arange(0, PATH)
    taken = tl.where(step == 0, 0, -1)
    emitted = tl.zeros([PATH], tl.int64)
    last = 0
    count = 0
    wanted = tl.load(target_ids + request * nodes)
    is_going = wanted >= 0
    while is_going & (count + 1 < path_width):
        # A padded node has no parent, so it is nobody's child; of siblings with one token the first counts.
        found = tl.min(tl.where((parent == last) & (token == wanted), node, NODES), 0)
        is_going = found < NODES
        last = tl.where(is_going, found, last)
        emitted = tl.where((step == count) & is_going, wanted, emitted)
        count += is_going.to(tl.int32)
        taken = tl.where((step == count) & is_going, found, taken)
        wanted = tl.load(target_ids + request * nodes + last)
        is_going = is_going & (wanted >= 0)
    tl.store(path + request * path_width + step, taken, mask=step < path_width)
    tl.store(counts + request, count)
    tl.store(bonus + request, wanted)
    emitted = tl.where(step == count, wanted, emitted)
    tl.store(gained + request * path_width + step, emitted, mask=step < path_width)
    tl.store(lens + request, count + 1)


def accept_walk(trees: TreeBatch, target_ids: Tensor, *, into: Outcome) -> Outcome:
    """Walk every tree.

    Args:
        trees: R trees of N nodes; tokens and parents are read, a row after another without gaps.
        target_ids: (R, N) int64 contiguous, the target's argmax at each node or NON_FINITE; a padded node's is
            not read.
        into: for R requests and D, no node being deeper.

    Returns:
        ``into``, written. No host sync, no allocation.
    """
    requests, nodes = trees.tokens.shape
    accepted, width = into.accepted, into.tokens.shape[1]
    _walk[(requests,)](
        trees.tokens, trees.parents, target_ids, accepted.path, accepted.num_correct_drafts, accepted.bonus,
        into.tokens, into.lens, nodes, width, NODES=triton.next_power_of_2(nodes), PATH=triton.next_power_of_2(width),
        num_warps=1 if nodes <= 256 else 4,
    )  # fmt: skip
    return into
