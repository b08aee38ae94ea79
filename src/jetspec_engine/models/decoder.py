"""The forward of a decoder target, and the layer of the dense families: Llama, Qwen2 and Qwen3 in one code path.

Knows the order of operations and how weights are laid out for it. Deliberately does not know how many rows a linear
layer may get, where keys and values live, who sees whom, or which rows belong to which sequence: the layers are made
by a factory it is given, and attention is a callable it is given. Every operation here works on each row alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.norms import RowNorm

RowFunction = Callable[..., Tensor]


class LayerFactory(Protocol):
    """Makes linear layers; see ``embedded.linear`` for what each returns."""

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> RowFunction: ...

    def residual(self, weight: Tensor, bias: Tensor | None = None) -> RowFunction: ...

    def gated(self, gate: Tensor, up: Tensor) -> RowFunction: ...


class Attend(Protocol):
    """Attention over everything a row may see, itself included.

    Attributes:
        fused: (n, (H + 2 KV heads) * head_dim) float32, filled by the caller before every call with the rows' queries,
            keys and values in this order, not rotated, the dimensions of a pair of q and k side by side. One place
            for all layers, so that whoever attends cuts it up once a forward.
    """

    fused: Tensor

    def __call__(self, layer: int) -> Tensor:
        """Store the keys and values of layer 0 .. L - 1 and return the attention's output.

        Returns:
            (n, H * head_dim) in the model's dtype; valid until the next call.
        """
        ...


class Layer(Protocol):
    """One layer; made from (config, index, weights, make) as ``DecoderLayer`` is."""

    def __call__(self, index: int, x: Tensor, attend: Any) -> Tensor:
        """Return the states after this layer, (n, E)."""
        ...


class DecoderLayer:
    """One dense layer's weights and its forward.

    Args:
        config: of the target.
        index: 0 .. L - 1; dense layers are all alike.
        weights: this layer's tensors, names as in ``tensor_table.layer_tensors``.
        make: makes the linear layers.
    """

    def __init__(
        self,
        config: DecoderConfig,
        index: int,  # noqa: ARG002
        weights: Mapping[str, Tensor],
        make: LayerFactory,
    ) -> None:
        self._config = config
        self._input_norm = weights["input_layernorm.weight"]
        self._inner_norm = weights["post_attention_layernorm.weight"]
        self._head_norms: tuple[Tensor, Tensor] | None = None
        if config.has_qk_norm:
            q_norm, k_norm = (weights[f"self_attn.{name}_norm.weight"].float() for name in "qk")
            self._head_norms = (paired_rows(q_norm, config.head_dim), paired_rows(k_norm, config.head_dim))
        self._qkv = make.linear(*fuse_qkv(config, weights))
        self._output = make.residual(weights["self_attn.o_proj.weight"], weights.get("self_attn.o_proj.bias"))
        self._gated = make.gated(weights["mlp.gate_proj.weight"], weights["mlp.up_proj.weight"])
        self._down = make.residual(weights["mlp.down_proj.weight"])

    def __call__(self, index: int, x: Tensor, attend: Attend) -> Tensor:
        """Return the states after this layer, (n, E)."""
        config = self._config
        normed = functional.rms_norm(x, (config.hidden_size,), self._input_norm, config.rms_norm_eps)
        attend.fused.copy_(self._qkv(normed))
        if self._head_norms is not None:
            heads = attend.fused.view(x.shape[0], -1, config.head_dim)
            parts = heads.split_with_sizes((config.num_heads, config.num_kv_heads, config.num_kv_heads), 1)
            for part, weight in zip(parts, self._head_norms, strict=False):
                part.copy_(functional.rms_norm(part, (config.head_dim,), weight, config.rms_norm_eps))
        x = self._output(attend(index), x)
        normed = functional.rms_norm(x, (config.hidden_size,), self._inner_norm, config.rms_norm_eps)
        return self._down(self._gated(normed), x)


class Decoder:
    """The whole target.

    Args:
        config: of the target.
        weights: tensors as ``weights.load_weights`` returns them, all of one dtype on one device. Emptied layer by
            layer as they are laid out, so that memory never holds the model twice.
        make: makes the linear layers.
        make_layer: makes a layer.

    Attributes:
        lm_head: (n, E) normed states -> (n, V).
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: dict[str, Tensor],
        make: LayerFactory,
        make_layer: Callable[..., Layer] = DecoderLayer,
    ) -> None:
        self._embedding = weights["embed_tokens.weight"]
        self._norm = RowNorm(config, weights["norm.weight"])
        self.lm_head = make.linear(weights.get("lm_head.weight", self._embedding))
        self._layers: list[Layer] = []
        for layer in range(config.num_layers):
            prefix = f"layers.{layer}."
            names = [name for name in weights if name.startswith(prefix)]
            own = {name.removeprefix(prefix): weights.pop(name) for name in names}
            self._layers.append(make_layer(config, layer, own, make))

    def hidden(self, token_ids: Tensor, attend: Any, taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Return the states after the last layer, and those after each tapped layer.

        Args:
            token_ids: (n,) int64.
            attend: attention over these rows' sequences, and what else the layers ask for.
            taps: layer indices, 0 for the states after the first layer.

        Returns:
            (n, E) not yet normed, and a list of (n, E) in the order of ``taps``.
        """
        x = functional.embedding(token_ids, self._embedding)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            x = layer(index, x, attend)
            if index in taps:
                kept[index] = x
        return x, [kept[index] for index in taps]

    def logits(self, x: Tensor) -> Tensor:
        """Return (n, V) for states (n, E) after the last layer."""
        return self.lm_head(self._norm(x))


def fuse_qkv(config: DecoderConfig, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the weight ((H + 2 KV) * head_dim, E) and bias of q, k and v in one product, q's and k's rows paired."""
    parts: list[Tensor] = []
    for kind in ("weight", "bias"):
        if kind == "bias" and not config.has_qkv_bias:
            return parts[0], None
        q, k, v = (weights[f"self_attn.{name}_proj.{kind}"] for name in "qkv")
        parts.append(torch.cat((paired_rows(q, config.head_dim), paired_rows(k, config.head_dim), v)))
    return parts[0], parts[1]


def paired_rows(rows: Tensor, head_dim: int) -> Tensor:
    """Return rows (heads * head_dim, ...) with dimensions i and i + head_dim / 2 of each head side by side.

    Scores are sums over a head's dimensions, so the same order in q and k changes none of them.
    """
    halves = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
