"""One forward's way through the recurrent states: every row's state from its parent's, a depth at a time.

Knows plans and states, nothing of the layers that ask or of what is accepted. Chains, prompts and single tokens take
the same way as trees: a row's state is its parent's after one update, whatever else is in the forward.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from jetspec_engine.embedded.delta_plan import ScanPlan, make_plan
from jetspec_engine.embedded.delta_state import DeltaState, Inputs, Past, Round, read, update_
from jetspec_engine.models.decoder import Attend
from jetspec_engine.protocol import VerifyItem


class DeltaScan:
    """``delta_block.Recur`` over the rows of several items.

    Args:
        items: in the order of the forward's rows.
        state: where committed states live.
        device: of the rows.

    Raises:
        EngineError: an item whose committed state is at another length.
    """

    def __init__(self, items: Sequence[VerifyItem], state: DeltaState, device: torch.device) -> None:
        self._items = items
        self._state = state
        self._pasts: list[Past] = [state.past(item.region, item.length) for item in items]
        self._counts = [item.tree.num_nodes for item in items]
        self._plan: ScanPlan = make_plan(items, state.shape.conv_size - 1, device)
        self._group = state.shape.num_value_heads // state.shape.num_key_heads
        self._mixed: list[Tensor] = []
        self._inputs: list[Inputs] = []
        self._ends: list[dict[int, Tensor]] = []

    def window(self, layer: int, rows: Tensor) -> Tensor:
        """Return each row behind its predecessors; see ``delta_block.Recur``."""
        self._mixed.append(rows)
        known = torch.cat([*(past.kept[layer] for past in self._pasts), rows])
        return torch.cat((known[self._plan.before], rows.unsqueeze(1)), 1)

    def scan(self, layer: int, *, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        """Update and read every row's state; see ``delta_block.Recur``."""
        q, k = (part.repeat_interleave(self._group, 1) for part in (q, k))
        self._inputs.append(Inputs(k=k, v=v, decay=decay, beta=beta, mixed=self._mixed[layer]))
        found = torch.empty_like(v)
        states = torch.stack([past.states[layer] for past in self._pasts])
        ends: dict[int, Tensor] = {}
        for level in self._plan.levels:
            if level.parents is not None:
                states = states[level.parents]
            rows = level.rows
            update_(states, k[rows], v[rows], decay[rows], beta[rows])
            found[rows] = read(states, q[rows])
            ends.update((item, states[place].clone()) for item, place in level.ends)
        self._ends.append(ends)
        return found

    def finish(self) -> None:
        """Hand the round over to the state, to wait for each item's commit."""
        by_layer = [_split(inputs, self._counts) for inputs in self._inputs]
        for index, (item, past) in enumerate(zip(self._items, self._pasts, strict=True)):
            ends = tuple(layer[index] for layer in self._ends) if item.tree.is_chain else ()
            inputs = tuple(layer[index] for layer in by_layer)
            self._state.begin(item.region, Round(past=past, inputs=inputs, ends=ends))


class HybridBatch:
    """``decoder.Attend`` and ``delta_block.Recur`` over the rows of several items, each by the part that does it."""

    def __init__(self, attend: Attend, scan: DeltaScan) -> None:
        self._attend, self.fused = attend, attend.fused
        self.window, self.scan = scan.window, scan.scan

    def __call__(self, layer: int) -> Tensor:
        """Return (n, H * head_dim), valid until the next call; see ``decoder.Attend``."""
        return self._attend(layer)


def _split(inputs: Inputs, counts: Sequence[int]) -> list[Inputs]:
    """Return each item's part of a layer's inputs."""
    parts = (part.split_with_sizes(list(counts)) for part in (inputs.k, inputs.v, inputs.decay, inputs.beta))
    mixed = inputs.mixed.split_with_sizes(list(counts))
    return [
        Inputs(k=k, v=v, decay=decay, beta=beta, mixed=own)
        for k, v, decay, beta, own in zip(*parts, mixed, strict=True)
    ]
