"""What recurrent layers need in a verify, in tensors that never move: state slots, the paths' plan, where tokens begin.

Paths and depths are the round's own (``round_state``); the links that acceptance walks play no part. Kernels do the
work on a GPU and their torch twins elsewhere. Knows slots and trees; no model and no scheduler.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.sglang_backend.recurrent.reference import (
    convolve_paths_reference,
    delta_paths_reference,
    plan_paths_reference,
)
from jetspec_engine.sglang_backend.round_state import RoundState


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LayerStates:
    """The committed and kept states of one layer, as SGLang's pool holds them.

    Attributes:
        conv, memory: (S, C, T - 1) and (S, value heads, value width, key width), committed.
        kept_conv, kept_memory: (any, N, ...) alike, a node's once it is taken.
    """

    conv: Tensor
    memory: Tensor
    kept_conv: Tensor
    kept_memory: Tensor


class RecurrentRound:
    """Static tensors of one worker's recurrent layers.

    Args:
        round_state: whose trees are verified; staged before this is.
        device: where the tensors are.
        has_kernels: as for ``RoundState``.

    Attributes:
        slots: (R,) int32 each request's place in the states, -1 for padding.
    """

    def __init__(self, round_state: RoundState, device: Any, *, has_kernels: bool) -> None:
        self._round, self._has_kernels = round_state, has_kernels
        shape = round_state.shape
        self.slots = torch.full((shape.requests,), -1, dtype=torch.int32, device=device)
        self._begins = {
            rows: torch.zeros((shape.requests, rows), dtype=torch.int32, device=device) for rows in shape.rows
        }
        self._token_starts = {
            rows: torch.arange(0, shape.requests * rows + 1, rows, dtype=torch.int32, device=device)
            for rows in shape.rows
        }

    def stage(self, slots: Tensor, num_real: int, rows: int) -> None:
        """Take over a batch before its verify, after ``RoundState.stage``. No host sync.

        Args:
            slots: (r,) int the requests' places in the states.
            num_real: requests; what follows is padding.
            rows: verify rows of each.
        """
        count = len(slots)
        self.slots[:num_real].copy_(slots[:num_real])
        self.slots[num_real:count].fill_(-1)
        path, depths, begins = self._round.paths(count), self._round.trees(count).depths, self._begins[rows][:count]
        if self._has_kernels:
            from jetspec_engine.sglang_backend.kernels.path_plan import plan_paths

            plan_paths(path, depths, into=begins)
        else:
            begins.copy_(plan_paths_reference(path, depths))

    def token_starts(self, count: int, rows: int) -> Tensor:
        """Return (count + 1,) int32, where each request's rows begin, as a view."""
        return self._token_starts[rows][: count + 1]

    def convolve(self, mixed: Tensor, layer: Any, states: LayerStates, rows: int) -> Tensor:
        """Convolve the inputs of every node; returns (r * rows, C). Capturable."""
        count = len(mixed) // rows
        options = self._options(count) | {
            "state": states.conv, "kept": states.kept_conv, "has_silu": layer.activation in ("silu", "swish")
        }  # fmt: skip
        if not self._has_kernels:
            return convolve_paths_reference(mixed, layer.conv_weights, layer.bias, **options)
        from jetspec_engine.sglang_backend.kernels.path_conv import convolve_paths

        return convolve_paths(mixed, layer.conv_weights, layer.bias, out=torch.empty_like(mixed), **options)

    def remember(  # noqa: PLR0917 a layer's inputs
        self, mixed: Tensor, decay: Tensor, write: Tensor, layer: Any, states: LayerStates, rows: int
    ) -> Tensor:
        """Run every path through the layer's memory; returns (r * rows, value heads, value width). Capturable."""
        count = len(mixed) // rows
        heads, widths = (layer.num_k_heads, layer.num_v_heads), (layer.head_k_dim, layer.head_v_dim)
        options = self._options(count) | {"state": states.memory, "kept": states.kept_memory}
        gates = (decay, write, layer.A_log, layer.dt_bias)
        if not self._has_kernels:
            return delta_paths_reference(mixed, *gates, heads=heads, widths=widths, **options)
        from jetspec_engine.sglang_backend.kernels.path_delta import DeltaShape, delta_paths

        shape = DeltaShape(
            key_heads=heads[0], key_width=widths[0], value_heads=heads[1], value_width=widths[1]
        )  # fmt: skip
        out = mixed.new_empty(len(mixed), heads[1], widths[1])
        return delta_paths(mixed, *gates, shape=shape, begins=self._begins[rows][:count], out=out, **options)

    def _options(self, count: int) -> dict[str, Any]:
        return {
            "slots": self.slots[:count], "path": self._round.paths(count), "depths": self._round.trees(count).depths
        }  # fmt: skip
