"""Three ways to lay out the weight of a linear layer, each with the same three layers on it.

Knows no model and no row counts: weights in, functions of rows out.

- ``PACKED``, bfloat16 on a CPU: weights packed once for oneDNN (measured on AVX512-BF16: 1.4 to 2.2 times faster than
  the plain call at 1 to 64 rows), a residual or a gate folded into the product.
- ``BLOCKED``, float32 on a CPU: the same, and sums over the inputs taken in blocks, because oneDNN adds them in one
  go and would lose half a digit against a library that blocks (measured on the demo target's logits: 1.4e-5 against
  0.9e-5 root mean square error).
- ``PLAIN``, everywhere else: torch's own calls.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.draft.linear import can_pack, pack

Run = Callable[..., Tensor]
Build = Callable[[Sequence[Tensor], Tensor | None], Run]

MAX_BLOCK_INPUTS = 192


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Builders of the layers, each called with the weights and a bias or None.

    Attributes:
        name: for ``describe``.
        linear: of (weight,), ``x -> x @ weight.T + bias``.
        residual: of (weight,), ``(x, residual) -> residual + (x @ weight.T + bias)``.
        gated: of (gate, up), ``x -> silu(x @ gate.T) * (x @ up.T)``; takes no bias.
    """

    name: str
    linear: Build
    residual: Build
    gated: Build


def choose_layout(dtype: torch.dtype, device: torch.device) -> Layout:
    """Return the fastest layout that this torch offers for the dtype on this device."""
    if not can_pack(dtype, device):
        return PLAIN
    return BLOCKED if dtype == torch.float32 else PACKED


def gate(opened: Tensor, value: Tensor) -> Tensor:
    """Return ``silu(opened) * value``.

    Not torch's silu: its vector body and its scalar tail differ, so an element's bits would depend on its place.
    """
    return opened / (1 + torch.exp(-opened)) * value


def packed_linear(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``linear``."""
    packed, product = pack(weights[0]), torch.ops.mkldnn._linear_pointwise.default
    return lambda x: product(x, packed, bias, "none", [], "")


def packed_residual(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``residual``; the sum is rounded once."""
    packed, product = pack(weights[0]), torch.ops.mkldnn._linear_pointwise.binary
    return lambda x, residual: product(x, residual, packed, bias, "add")


def packed_gated(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``gated``."""
    opened, up = (pack(weight) for weight in weights)
    product, combine = torch.ops.mkldnn._linear_pointwise.default, torch.ops.mkldnn._linear_pointwise.binary
    return lambda x: combine(x, product(x, opened, bias, "swish", [], ""), up, bias, "mul")


def blocked_linear(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``linear``."""
    width = min(weights[0].shape[1], MAX_BLOCK_INPUTS)
    first = packed_linear((weights[0][:, :width],), bias)
    if width == weights[0].shape[1]:
        return first
    rest = blocked_residual((weights[0][:, width:],), None)
    return lambda x: rest(x[:, width:], first(x[:, :width]))


def blocked_residual(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``residual``."""
    inputs = weights[0].shape[1]
    combine = torch.ops.mkldnn._linear_pointwise.binary
    blocks = [slice(low, low + MAX_BLOCK_INPUTS) for low in range(0, inputs, MAX_BLOCK_INPUTS)]
    parts = [(block, pack(weights[0][:, block]), None if block.start else bias) for block in blocks]

    def run(x: Tensor, residual: Tensor) -> Tensor:
        for block, packed, own_bias in parts:
            residual = combine(x[:, block], residual, packed, own_bias, "add")
        return residual

    return run


def blocked_gated(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``gated``."""
    opened, up = (blocked_linear((weight,), bias) for weight in weights)
    return lambda x: gate(opened(x), up(x))


def plain_linear(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``linear``."""
    weight = weights[0]
    return lambda x: functional.linear(x, weight, bias)


def plain_residual(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``residual``."""
    weight = weights[0]
    return lambda x, residual: residual + functional.linear(x, weight, bias)


def plain_gated(weights: Sequence[Tensor], bias: Tensor | None) -> Run:
    """Build ``gated``, as one product."""
    both = torch.cat(tuple(weights))

    def run(x: Tensor) -> Tensor:
        opened, value = functional.linear(x, both, bias).float().chunk(2, -1)
        return gate(opened, value).to(x.dtype)

    return run


PACKED = Layout(name="packed", linear=packed_linear, residual=packed_residual, gated=packed_gated)
BLOCKED = Layout(name="packed, blocked", linear=blocked_linear, residual=blocked_residual, gated=blocked_gated)
PLAIN = Layout(name="plain", linear=plain_linear, residual=plain_residual, gated=plain_gated)
