"""The slow, obvious forward of targets with recurrent layers and experts, in float64, row by row.

The twin of ``reference`` for what is not dense, under the same rules: it shares nothing with the fast forward but the
configuration and the checkpoint's tensors, and who sees whom is an argument.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.embedded.reference import layer_weights, mix, rotary_angles
from jetspec_engine.models.config import DecoderConfig


def hybrid_reference_forward(
    config: DecoderConfig, weights: Mapping[str, Tensor], token_ids: Tensor, positions: Tensor, sees: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Run the target over rows that see each other as told; see ``reference.reference_forward``.

    A row's state comes from the row it sees at the position before its own.
    """
    x = weights["embed_tokens.weight"][token_ids].double()
    angles = rotary_angles(config, positions)
    parents = parents_of(positions, sees)
    states = []
    for layer in range(config.num_layers):
        own = layer_weights(weights, layer)
        window = config.sliding_windows[layer]
        near = sees if window is None else sees & (positions[None, :] > positions[:, None] - window)
        normed = norm(config, x, own["input_layernorm.weight"])
        is_delta = config.is_delta(layer)
        x = x + (
            delta_layer(config, own, normed, parents) if is_delta else attention(config, own, normed, angles, near)
        )
        normed = norm(config, x, own["post_attention_layernorm.weight"])
        x = x + (expert_mlp(config, own, normed) if config.is_sparse(layer) else _mlp(own, "mlp", normed))
        states.append(x)
    head = weights.get("lm_head.weight", weights["embed_tokens.weight"]).double()
    return norm(config, x, weights["norm.weight"].double()) @ head.T, states


def norm(config: DecoderConfig, x: Tensor, weight: Tensor) -> Tensor:
    """Return x by its root mean square, times the weight or ``1 + weight``."""
    gain = 1 + weight if config.is_norm_zero_centred else weight
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + config.rms_norm_eps) * gain


def attention(config: DecoderConfig, own: Mapping[str, Tensor], x: Tensor, angles: Tensor, sees: Tensor) -> Tensor:
    """Return an attention layer's output (T, E) for normed states (T, E)."""

    def project(name: str) -> Tensor:
        made = x @ own[f"self_attn.{name}_proj.weight"].T + own.get(f"self_attn.{name}_proj.bias", 0.0)
        return made.view(len(x), -1, config.head_dim).transpose(0, 1)

    q, k, v = (project(name) for name in "qkv")
    gate = None
    if config.has_attention_gate:
        # A head's query comes before its gate.
        q, gate = q[0::2], q[1::2]
    if config.has_qk_norm:
        q, k = (norm(config, part, own[f"self_attn.{name}_norm.weight"]) for name, part in (("q", q), ("k", k)))
    mixed = mix(rotate_some(q, angles), rotate_some(k, angles), v, sees)
    if gate is not None:
        mixed = mixed * torch.sigmoid(gate).transpose(0, 1).reshape(len(x), -1)
    return mixed @ own["self_attn.o_proj.weight"].T + own.get("self_attn.o_proj.bias", 0.0)


def rotate_some(x: Tensor, angles: Tensor) -> Tensor:
    """Return heads (H, T, head_dim) with as many leading dimensions rotated as there are angles, two by two."""
    turned, still = x[..., : 2 * angles.shape[1]], x[..., 2 * angles.shape[1] :]
    first, second = turned.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, still), -1)


def parents_of(positions: Tensor, sees: Tensor) -> list[int]:
    """Return each row's parent: the row it sees whose position is one less; -1 for a text's first."""
    return [
        next((row for row in range(len(positions)) if sees[own, row] and positions[row] == positions[own] - 1), -1)
        for own in range(len(positions))
    ]


def delta_layer(config: DecoderConfig, own: Mapping[str, Tensor], x: Tensor, parents: list[int]) -> Tensor:
    """Return a Gated DeltaNet's output (T, E) for normed states (T, E); a row's parent comes before it."""
    shape = config.delta
    assert shape is not None
    mixed, z, b, a = project(config, own, x)
    taps = own["linear_attn.conv1d.weight"].squeeze(1)
    states: list[Tensor] = []
    rows = []
    for row, parent in enumerate(parents):
        way = [row]
        while len(way) < shape.conv_size and parents[way[-1]] >= 0:
            way.append(parents[way[-1]])
        convolved = (taps[:, -len(way) :].T * mixed[way[::-1]]).sum(0)
        q, k, v = functional.silu(convolved).split_with_sizes((shape.key_size, shape.key_size, shape.value_size))
        group = shape.num_value_heads // shape.num_key_heads
        q, k = (part.view(-1, shape.key_dim).repeat_interleave(group, 0) for part in (q, k))
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
        size = (shape.num_value_heads, shape.key_dim, shape.value_dim)
        state = states[parent] if parent >= 0 else x.new_zeros(size)
        state = (
            state
            * torch.exp(-own["linear_attn.A_log"].exp() * softplus(a[row] + own["linear_attn.dt_bias"]))[:, None, None]
        )
        missing = v.view(-1, shape.value_dim) - torch.einsum("hkv,hk->hv", state, k)
        state = state + torch.einsum("h,hk,hv->hkv", torch.sigmoid(b[row]), k, missing)
        states.append(state)
        rows.append(torch.einsum("hkv,hk->hv", state, q) / shape.key_dim**0.5)
    read = torch.stack(rows)
    normed = read / (read.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * own["linear_attn.norm.weight"]
    gated = normed * functional.silu(z.view(normed.shape))
    return gated.flatten(1) @ own["linear_attn.out_proj.weight"].T


def project(config: DecoderConfig, own: Mapping[str, Tensor], x: Tensor) -> list[Tensor]:
    """Return rows of [q k v], z, b and a, heads in order, from either layout of the checkpoints."""
    shape = config.delta
    assert shape is not None
    if not shape.is_grouped:
        return [x @ own[f"linear_attn.in_proj_{name}.weight"].T for name in ("qkv", "z", "b", "a")]
    group = shape.num_value_heads // shape.num_key_heads
    qkvz, ba = (x @ own[f"linear_attn.in_proj_{name}.weight"].T for name in ("qkvz", "ba"))
    width = group * shape.value_dim
    sizes = (shape.key_dim, shape.key_dim, width, width)
    by_head = qkvz.view(len(x), shape.num_key_heads, -1).split_with_sizes(sizes, 2)
    q, k, v, z = (part.flatten(1) for part in by_head)
    b, a = (part.flatten(1) for part in ba.view(len(x), shape.num_key_heads, -1).split_with_sizes((group, group), 2))
    return [torch.cat((q, k, v), 1), z, b, a]


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)) without overflow."""
    return torch.logaddexp(x, torch.zeros_like(x))


def expert_mlp(config: DecoderConfig, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return a mixture of experts' output (T, E) for normed states (T, E), token by token."""
    shape = config.experts
    assert shape is not None
    rows = []
    for row in x:
        probabilities = torch.softmax(own["mlp.gate.weight"] @ row, 0)
        chosen = sorted(range(shape.num_experts), key=lambda one: (-float(probabilities[one]), one))[: shape.num_chosen]
        total = sum(float(probabilities[one]) for one in chosen) if shape.is_normed else 1.0
        outputs = [probabilities[one] / total * _mlp(own, f"mlp.experts.{one}", row) for one in chosen]
        made = torch.stack(outputs).sum(0)
        if shape.shared_size is not None:
            gate = torch.sigmoid(own["mlp.shared_expert_gate.weight"] @ row)
            made = made + gate * _mlp(own, "mlp.shared_expert", row)
        rows.append(made)
    return torch.stack(rows)


def _mlp(own: Mapping[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    gate, up = x @ own[f"{prefix}.gate_proj.weight"].T, x @ own[f"{prefix}.up_proj.weight"].T
    return (functional.silu(gate) * up) @ own[f"{prefix}.down_proj.weight"].T
