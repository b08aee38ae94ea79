"""Which nodes of a tree carry a recurrent state forward, and from which depth on each of them keeps what it computes.

A state kernel runs one program a leaf, which replays the leaf's path from the committed state in registers: no node
waits for another's state in memory, and siblings cannot meet. Nodes that several leaves share are kept by one of them:
the leaf that is reached from the node over first children. The plan is one number a node. Knows paths; no state.
"""

import triton
import triton.language as tl
from torch import Tensor

ROWS = 4
INNER, PADDED = -1, -2


@triton.jit(do_not_specialize=["nodes", "path_width"])  # type: ignore[untyped-decorator]
def _plan(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    path, depths, begins, nodes, path_width, NODES: tl.constexpr, ROWS: tl.constexpr
):
    """ROWS nodes of one request."""
    request = tl.program_id(0)
    node = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_node = node < nodes
    first = request * nodes
    other = tl.arange(0, NODES)
    other_depth = tl.load(depths + first + other, mask=other < nodes, other=0)
    parents = tl.load(
        path + (first + other) * path_width + other_depth - 1, mask=(other < nodes) & (other_depth > 0), other=-1
    )[None, :]
    depth = tl.load(depths + first + node, mask=is_node, other=0)
    row = path + (first + node) * path_width
    begin = tl.zeros([ROWS], tl.int32)
    for step in tl.range(1, path_width):
        is_there = is_node & (step <= depth)
        at = tl.load(row + step, mask=is_there, other=0)
        above = tl.load(row + step - 1, mask=is_there, other=-2)
        eldest = tl.min(tl.where(parents == above[:, None], other[None, :], NODES), 1)
        begin = tl.where(is_there & (eldest != at), step, begin)
    is_inner = tl.max((parents == node[:, None]).to(tl.int32), 1) > 0
    begin = tl.where(is_inner, -1, begin)
    begin = tl.where((depth == 0) & (node > 0), -2, begin)
    tl.store(begins + first + node, begin, mask=is_node)


def plan_paths(path: Tensor, depths: Tensor, *, into: Tensor) -> None:
    """Plan R trees of N nodes.

    Args:
        path: (R, N, P) int32, contiguous: nodes from the root to each node, itself at its depth.
        depths: (R, N) int64, contiguous; 0 for the root and for padded nodes.
        into: (R, N) int32, contiguous, written: for a leaf the depth from which on it keeps its path's nodes, ``INNER``
            for a node with children, ``PADDED`` for one that is no node of the tree. No host sync, no allocation.
    """
    requests, nodes, width = path.shape
    _plan[(requests, triton.cdiv(nodes, ROWS))](
        path, depths, into, nodes, width, NODES=triton.next_power_of_2(nodes), ROWS=ROWS, num_warps=1
    )
