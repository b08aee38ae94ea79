"""Linear layers whose rows keep their bits in any company: a weight's layout and a row policy together.

Knows no model: weights in, callables out.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from jetspec_engine.embedded.layouts import Layout, Run, choose_layout
from jetspec_engine.embedded.rows import ANCHOR_ROWS, Operands, RowPolicy, probe_rows


class RowwiseLayer:
    """A function of rows that is always run in row counts its policy allows.

    Attributes:
        policy: the row policy.
    """

    def __init__(self, run: Run, policy: RowPolicy) -> None:
        self.policy = policy
        self._run = run

    def __call__(self, *rows: Tensor) -> Tensor:
        """Return ``run(*rows)`` for (n, ...) operands with any n >= 1."""
        return self.policy.apply(self._run, *rows)


class LinearFactory:
    """Makes the layers of one model (``decoder.LayerFactory``).

    Args:
        dtype: of weights and rows.
        device: of weights and rows.

    Attributes:
        policies: the row policies in use, by kind and shape of the layer.
        layout: how weights are laid out.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.policies: dict[str, RowPolicy] = {}
        self.layout = choose_layout(dtype, device)
        self._dtype = dtype
        self._device = device

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> RowwiseLayer:
        """Return ``x -> x @ weight.T + bias`` for x (n, K), weight (N, K)."""
        return self._make("linear", (weight,), bias)

    def residual(self, weight: Tensor, bias: Tensor | None = None) -> RowwiseLayer:
        """Return ``(x, residual) -> residual + (x @ weight.T + bias)``."""
        return self._make("residual", (weight,), bias)

    def gated(self, gate: Tensor, up: Tensor) -> RowwiseLayer:
        """Return ``x -> silu(x @ gate.T) * (x @ up.T)`` for gate and up (N, K)."""
        return self._make("gated", (gate, up), None)

    def _make(self, kind: str, weights: Sequence[Tensor], bias: Tensor | None) -> RowwiseLayer:
        outputs, inputs = weights[0].shape
        has_bias = bias is not None
        policy = find_policy(
            layout=self.layout,
            kind=kind,
            outputs=outputs,
            inputs=inputs,
            has_bias=has_bias,
            dtype=self._dtype,
            device=self._device,
            num_threads=torch.get_num_threads(),
        )
        self.policies[f"{kind} {outputs}x{inputs}{' bias' if has_bias else ''}"] = policy
        return RowwiseLayer(getattr(self.layout, kind)(weights, bias), policy)


@lru_cache(maxsize=1024)
def find_policy(
    *,
    layout: Layout,
    kind: str,
    outputs: int,
    inputs: int,
    has_bias: bool,
    dtype: torch.dtype,
    device: torch.device,
    num_threads: int,  # noqa: ARG001  a library may cut its work, and its sums, by threads
) -> RowPolicy:
    """Return the row policy of a kind of layer and a shape; probed once in a process.

    Args:
        layout: of the weights.
        kind: linear, residual or gated.
        outputs: N.
        inputs: K.
        has_bias: whether the layer has one.
        dtype: of weights and rows.
        device: of weights and rows.
        num_threads: of the process, as it will stay.
    """
    tried = Operands.cancelling(outputs, inputs, 2 if kind == "gated" else 1, dtype, device)
    bias = tried.weights[0][:, 0].contiguous() if has_bias else None
    rows = [tried.rows]
    if kind == "residual":
        rows.append(tried.weights[0][:, :1].mT.repeat(ANCHOR_ROWS, 1))
    return probe_rows(getattr(layout, kind)(tried.weights, bias), rows)
