"""Recurrent layers over the paths of a tree, one node at a time in torch: the slow twins of the three state kernels.

A node's state comes from its parent's, the root's from the committed one, whatever the nodes' numbers; nothing is
written to the committed state. Runs where no kernel does, and says in tests what the kernels must give. Knows slots and
paths; no model and no engine.
"""

import torch
from torch import Tensor

INNER, PADDED = -1, -2


def plan_paths_reference(path: Tensor, depths: Tensor) -> Tensor:
    """Return (R, N) int32, see ``kernels.path_plan.plan_paths``."""
    begins = torch.zeros(depths.shape, dtype=torch.int32)
    for request, (nodes, deep) in enumerate(zip(path.tolist(), depths.tolist(), strict=True)):
        parents = [nodes[node][deep[node] - 1] if deep[node] else -1 for node in range(len(deep))]
        for node, depth in enumerate(deep):
            late = [step for step in range(1, depth + 1) if parents.index(nodes[node][step - 1]) != nodes[node][step]]
            begins[request, node] = max(late, default=0)
            if node in parents:
                begins[request, node] = INNER
            elif node and not depth:
                begins[request, node] = PADDED
    return begins.to(depths.device)


def convolve_paths_reference(
    mixed: Tensor, weight: Tensor, bias: Tensor | None, *, state: Tensor, slots: Tensor, path: Tensor, depths: Tensor,
    kept: Tensor, has_silu: bool,
) -> Tensor:  # fmt: skip
    """Return (R * N, C), see ``kernels.path_conv.convolve_paths``; a product is rounded to the inputs' dtype."""
    requests, nodes = depths.shape
    rows, taps = mixed.view(requests, nodes, -1), weight.shape[1]
    out = torch.zeros_like(mixed).view_as(rows)
    for request, node in _real_nodes(slots, depths):
        walked = path[request, node, : int(depths[request, node]) + 1].long()
        past = torch.cat([state[slots[request].long()].T, rows[request, walked[:-1]].to(state.dtype)]).to(mixed.dtype)
        inputs = torch.cat([past, rows[request, walked[-1:]]])[-taps:]
        total = torch.zeros_like(out[request, node], dtype=torch.float32)
        if bias is not None:
            total += bias.float()
        for tap in range(taps):
            total += (inputs[tap] * weight[:, tap]).float()
        kept[request, node].copy_(inputs[1:].T)
        out[request, node] = (torch.nn.functional.silu(total) if has_silu else total).to(mixed.dtype)
    return out.view_as(mixed)


def delta_paths_reference(
    mixed: Tensor, decay: Tensor, write: Tensor, decay_scale: Tensor, decay_bias: Tensor, *,
    heads: tuple[int, int], widths: tuple[int, int], state: Tensor, slots: Tensor, path: Tensor, depths: Tensor,
    kept: Tensor,
) -> Tensor:  # fmt: skip
    """Return (R * N, value heads, value width), see ``kernels.path_delta.delta_paths``; in float32.

    Args:
        heads, widths: of keys, then of values.
    """
    requests, nodes = depths.shape
    sizes = [heads[0] * widths[0], heads[0] * widths[0], heads[1] * widths[1]]
    query, key, value = torch.split(mixed.float(), sizes, dim=-1)
    query, key = (
        part.view(requests, nodes, heads[0], widths[0]).repeat_interleave(heads[1] // heads[0], dim=2)
        for part in (query, key)
    )
    value = value.view(requests, nodes, heads[1], widths[1])
    shape = (requests, nodes, heads[1])
    gate = torch.exp(-decay_scale.float().exp() * torch.nn.functional.softplus(decay.float() + decay_bias.float()))
    gate, beta = gate.view(shape), write.float().sigmoid().view(shape)
    out = mixed.new_zeros(*shape, widths[1])
    for request, node in _real_nodes(slots, depths):
        depth = int(depths[request, node])
        above = state[slots[request].long()] if not depth else kept[request, path[request, node, depth - 1].long()]
        q, k = (_unit(part[request, node]) for part in (query, key))
        memory = above.float() * gate[request, node, :, None, None]
        missing = value[request, node] - torch.einsum("hvk,hk->hv", memory, k)
        memory = memory + torch.einsum("hv,hk->hvk", missing * beta[request, node, :, None], k)
        kept[request, node].copy_(memory)
        read = torch.einsum("hvk,hk->hv", kept[request, node].float(), q * widths[0] ** -0.5)
        out[request, node] = read.to(mixed.dtype)
    return out.view(-1, heads[1], widths[1])


def _unit(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt((rows * rows).sum(dim=-1, keepdim=True) + 1e-6)


def _real_nodes(slots: Tensor, depths: Tensor) -> list[tuple[int, int]]:
    """Return (request, node), parents before children, padding left out."""
    return [
        (request, node)
        for request, deep in enumerate(depths.tolist())
        for node in sorted(range(len(deep)), key=deep.__getitem__)
        if int(slots[request]) >= 0 and (node == 0 or deep[node] > 0)
    ]
