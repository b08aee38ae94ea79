"""What follows from the parents of a tree: paths, mask, child and sibling links, positions; one launch a batch.

Equals ``tree/mask.py``, ``tree/links.py`` and ``node_paths.py``. Knows no tokens.
"""

import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.sglang_backend.kernels.tree_buffers import TreeBuffers

ROWS = 4  # few, so that many programs share the work


@triton.jit(do_not_specialize=["nodes", "path_width"])  # type: ignore[untyped-decorator]
def _lay_out(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    parents, depths, lengths, path, mask, first_child, next_sibling, positions, nodes, path_width,
    NODES: tl.constexpr, PATH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS nodes of one request."""
    request = tl.program_id(0)
    node = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_node = node < nodes
    row = request * nodes + node
    parents += request * nodes
    parent = tl.load(parents + node, mask=is_node, other=-1)
    depth = tl.load(depths + row, mask=is_node, other=0)
    tl.store(positions + row, tl.load(lengths + request).to(tl.int64) + depth, mask=is_node)
    step = tl.arange(0, PATH)
    is_past = (step[None, :] > depth[:, None]) & (step < path_width)[None, :] & is_node[:, None]
    tl.store(path + row[:, None] * path_width + step[None, :], node[:, None], mask=is_past)
    other = tl.arange(0, NODES)
    sees = other[None, :] == node[:, None]
    at = node.to(tl.int64)
    is_there = is_node
    for back in tl.range(0, path_width):
        tl.store(path + row * path_width + depth - back, at.to(tl.int32), mask=is_there)
        sees = sees | ((other[None, :] == at[:, None]) & is_there[:, None])
        at = tl.load(parents + at, mask=is_there, other=-1)
        is_there = is_there & (at >= 0)
    is_other = other < nodes
    tl.store(mask + row[:, None] * nodes + other[None, :], sees, mask=is_node[:, None] & is_other[None, :])
    theirs = tl.load(parents + other, mask=is_other, other=-1)[None, :]
    child = tl.min(tl.where(theirs == node[:, None], other[None, :], NODES), 1)
    is_younger = (theirs == parent[:, None]) & (theirs >= 0) & (other[None, :] > node[:, None])
    sibling = tl.min(tl.where(is_younger, other[None, :], NODES), 1)
    tl.store(first_child + row, tl.where(child < NODES, child, -1), mask=is_node)
    tl.store(next_sibling + row, tl.where(sibling < NODES, sibling, -1), mask=is_node)


def lay_out(lengths: Tensor, *, into: TreeBuffers) -> None:
    """Write path, mask, links and positions of trees whose parents and depths are in the buffers.

    Args:
        lengths: (R,) int committed tokens.
        into: the buffers; of the trees, parents and depths are read.
    """
    trees = into.trees
    requests, nodes = trees.tokens.shape
    width = into.path.shape[-1]
    _lay_out[(requests, triton.cdiv(nodes, ROWS))](
        trees.parents, trees.depths, lengths, into.path, trees.mask, trees.first_child, trees.next_sibling,
        into.positions, nodes, width,
        NODES=triton.next_power_of_2(nodes), PATH=triton.next_power_of_2(width), ROWS=ROWS,
        num_warps=2,
    )  # fmt: skip
