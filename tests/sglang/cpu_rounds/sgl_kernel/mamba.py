"""A stand-in for SGLang's CPU kernels of gated-delta layers, token by token in plain torch.

What they do to a state is written out here anew, so that rounds are held against something of another hand.
"""

from itertools import pairwise

import torch


def _convolve(inputs, past, weight, bias, has_silu):
    """(n, C) inputs behind (C, T - 1) past ones -> (n, C) outputs and the new past."""
    taps = weight.shape[1]
    known = torch.cat([past.T, inputs])
    out = torch.nn.functional.conv1d(known.T.unsqueeze(0), weight.unsqueeze(1), bias, groups=weight.shape[0])[0].T
    return torch.nn.functional.silu(out) if has_silu else out, known[len(known) - taps + 1 :].T


def causal_conv1d_fn_cpu(
    mixed, weight, bias, *, activation, conv_states, has_initial_state, cache_indices, query_start_loc, **_
):
    out = torch.empty_like(mixed)
    starts = query_start_loc.tolist()
    for place, (begin, end) in enumerate(pairwise(starts)):
        slot = int(cache_indices[place])
        past = conv_states[slot] if bool(has_initial_state[place]) else torch.zeros_like(conv_states[slot])
        rows, kept = _convolve(mixed[:, begin:end].T, past, weight, bias, activation is not None)
        out[:, begin:end] = rows.T
        conv_states[slot] = kept
    return out


def causal_conv1d_update_cpu(mixed, conv_states, weight, bias, activation, *, conv_state_indices, **_):
    out = torch.empty_like(mixed)
    for place, slot in enumerate(conv_state_indices.tolist()):
        out[place : place + 1], conv_states[slot] = _convolve(
            mixed[place : place + 1], conv_states[slot], weight, bias, activation is not None
        )
    return out


def _recur(q, k, v, g, beta, memory):  # noqa: PLR0917 the recurrence has so many
    """(n, H, ..) rows and a (V heads, V, K) state -> (n, V heads, V) and the state after them."""
    group = v.shape[1] // q.shape[1]
    q, k = (torch.nn.functional.normalize(part.float(), dim=-1, eps=0.0) for part in (q, k))
    q, k = (part.repeat_interleave(group, dim=1) for part in (q, k))
    read = []
    for row in range(len(v)):
        memory = memory * g[row].exp()[:, None, None]
        change = (v[row].float() - (memory * k[row][:, None, :]).sum(-1)) * beta[row][:, None]
        memory = memory + change[:, :, None] * k[row][:, None, :]
        read.append((memory * q[row][:, None, :]).sum(-1) * q.shape[-1] ** -0.5)
    return torch.stack(read).to(v.dtype), memory


def fused_gdn_gating_cpu(decay_scale, a, b, dt_bias):
    g = -decay_scale.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float())
    return g.unsqueeze(0), b.float().sigmoid().unsqueeze(0)


def chunk_gated_delta_rule_cpu(*, q, k, v, g, beta, initial_state, initial_state_indices, cu_seqlens, **_):
    out = torch.empty_like(v)
    starts = cu_seqlens.tolist()
    for place, (begin, end) in enumerate(pairwise(starts)):
        slot = int(initial_state_indices[place])
        part = slice(begin, end)
        out[0, part], initial_state[slot] = _recur(
            q[0, part], k[0, part], v[0, part], g[0, part], beta[0, part], initial_state[slot].float()
        )
    return out, None, None


def fused_sigmoid_gating_delta_rule_update_cpu(
    *, A_log, dt_bias, q, k, v, a, b, initial_state_source, initial_state_indices, **_
):
    g, beta = fused_gdn_gating_cpu(A_log, a, b, dt_bias)
    out = torch.empty_like(v)
    for place, slot in enumerate(initial_state_indices.tolist()):
        row = slice(place, place + 1)
        out[0, row], initial_state_source[slot] = _recur(
            q[0, row], k[0, row], v[0, row], g[0, row], beta[0, row], initial_state_source[slot].float()
        )
    return out


def fused_qkvzba_split_reshape_cat_contiguous_cpu(  # noqa: PLR0917 SGLang's order
    qkvz, ba, key_heads, value_heads, key_width, value_width
):
    keys, values = key_heads * key_width, value_heads * value_width
    mixed, z = qkvz.split([2 * keys + values, values], dim=-1)
    b, a = ba.chunk(2, dim=-1)
    return mixed.contiguous(), z.reshape(len(z), value_heads, value_width), b.contiguous(), a.contiguous()


def _normalise(rows, weight, epsilon):
    spread = torch.rsqrt(rows.float().square().mean(-1, keepdim=True) + epsilon)
    return (rows.float() * spread * (1 + weight.float())).to(rows.dtype)


def fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, epsilon, width):  # noqa: PLR0917 SGLang's order
    return tuple(_normalise(part.reshape(-1, width), w, epsilon) for part, w in ((q, q_weight), (k, k_weight)))


def fused_qk_gemma_rmsnorm_with_gate_cpu(  # noqa: PLR0917 SGLang's order
    q_gate, k, q_weight, k_weight, epsilon, width, heads
):
    q, gate = q_gate.reshape(len(q_gate), heads, 2 * width).chunk(2, dim=-1)
    normed = fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, epsilon, width)
    return *normed, gate.reshape(len(gate), -1)


def fused_sigmoid_mul_cpu(attended, gate, *_, **__):
    return attended * gate.reshape_as(attended).sigmoid()
