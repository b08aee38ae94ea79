"""A batch taken over before its verify, in one launch: slots of prefixes, lengths, the nodes of a smaller frame.

Equals what ``RoundState.stage`` does in torch, but for slots behind a prefix, which nobody reads and which are left as
they are. Knows tensors, no scheduler.
"""

import triton
import triton.language as tl
from torch import Tensor

from jetspec_engine.sglang_backend.kernels.tree_buffers import TreeBuffers

CHUNK = 1024  # slots a program copies
KEEP, CHAIN, COPY = 0, 1, 2


@triton.jit(do_not_specialize=["row_stride", "row_width", "source_nodes", "nodes", "chain", "path_width"])  # type: ignore[untyped-decorator]
def _stage(  # type: ignore[no-untyped-def]  # noqa: PLR0917 a kernel is called by position
    req_to_token, requests, prefix_lens, slots_out, lens_out,
    tokens, parents, depths, valid, path, tokens_out, parents_out, depths_out, valid_out, path_out,
    row_stride, row_width, source_nodes, nodes, chain, path_width,
    KIND: tl.constexpr, NODES: tl.constexpr, PATH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One chunk of one request's slots; the first also does the rest."""
    request = tl.program_id(0)
    length = tl.load(prefix_lens + request).to(tl.int64)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    is_slot = (column < length) & (column < row_width)
    row = tl.load(requests + request).to(tl.int64)
    slot = tl.load(req_to_token + row * row_stride + column, mask=is_slot, other=0)
    tl.store(slots_out + request.to(tl.int64) * row_width + column, slot, mask=is_slot)
    if tl.program_id(1) == 0:
        tl.store(lens_out + request, length)
        node = tl.arange(0, NODES)
        step = tl.arange(0, PATH)
        if KIND == 1:
            is_node = node < chain
            tl.store(depths_out + request * nodes + node, node.to(tl.int64), mask=is_node)
            links = tl.minimum(node[:, None], step[None, :])
            at = (request * nodes + node[:, None]) * path_width + step[None, :]
            tl.store(path_out + at, links, mask=is_node[:, None] & (step[None, :] < path_width))
        if KIND == 2:
            is_node = node < nodes
            source, target = request * source_nodes + node, request * nodes + node
            tl.store(tokens_out + target, tl.load(tokens + source, mask=is_node, other=0), mask=is_node)
            tl.store(parents_out + target, tl.load(parents + source, mask=is_node, other=0), mask=is_node)
            tl.store(depths_out + target, tl.load(depths + source, mask=is_node, other=0), mask=is_node)
            tl.store(valid_out + target, tl.load(valid + source, mask=is_node, other=0), mask=is_node)
            both = is_node[:, None] & (step[None, :] < path_width)
            links = tl.load(path + source[:, None] * path_width + step[None, :], mask=both, other=0)
            tl.store(path_out + target[:, None] * path_width + step[None, :], links, mask=both)


def stage_batch(
    req_to_token: Tensor, requests: Tensor, prefix_lens: Tensor, *, slots: Tensor, lens: Tensor, source: TreeBuffers,
    frame: TreeBuffers, chain: int | None,
) -> None:  # fmt: skip
    """Take over r requests.

    Args:
        req_to_token: (any, S) int32, SGLang's request table, a row contiguous.
        requests: (r,) its rows.
        prefix_lens: (r,) committed tokens.
        slots: (R, S) int32 contiguous, written as far as each prefix goes.
        lens: (R,) int64, written.
        source: the drafted trees.
        frame: trees of N nodes, written unless it is ``source``.
        chain: make the frame's first nodes one of so many, at most D + 1; None for the drafted trees.

    No host sync, no allocation.
    """
    kind = CHAIN if chain is not None else KEEP if frame is source else COPY
    nodes, path_width = frame.path.shape[1:]
    ours, theirs = frame.trees, source.trees
    _stage[(len(requests), triton.cdiv(slots.shape[1], CHUNK))](
        req_to_token, requests, prefix_lens, slots, lens,
        theirs.tokens, theirs.parents, theirs.depths, theirs.is_valid, source.path,
        ours.tokens, ours.parents, ours.depths, ours.is_valid, frame.path,
        req_to_token.stride(0), slots.shape[1], source.path.shape[1], nodes, chain or 0, path_width,
        KIND=kind, NODES=triton.next_power_of_2(nodes), PATH=triton.next_power_of_2(path_width), CHUNK=CHUNK,
    )  # fmt: skip
