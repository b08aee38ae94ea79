"""The recurrent states of DeltaNet layers: one committed state a sequence, and what a commit needs of a round.

Knows sequences by their regions, and layers by their place among the DeltaNet layers. Knows no trees: ``delta_scan``
runs a round and hands over its rows' inputs. A committed tensor is never changed, only replaced, so that two sequences
may share one, and a round that ends without a commit leaves nothing behind.

Memory, with S = value heads * key_dim * value_dim * 4 bytes for one state of one layer, X bytes for one row's inputs
to one layer, C bytes for one row of convolution channels, and L DeltaNet layers (``delta_memory`` has the numbers):

- a committed sequence: L * (S + (conv_size - 1) * C);
- a round of B nodes until its commit: B * L * X, and L * S more when it is a chain;
- inside a round, for one layer at a time: (n[d - 1] + 2 * n[d]) * S for the depth d where that is largest, n[d] nodes
  being of depth d; never more than 2 * B * S.

A tree's states are not kept, which would be B * L * S: the commit runs the accepted path's updates again, and since
every update is made of the same operations on each element alone, it gives the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jetspec_engine.errors import EngineError
from jetspec_engine.models.elementwise import pairwise_sum_
from jetspec_engine.models.layer_kinds import DeltaShape
from jetspec_engine.protocol import SlotRegion


@dataclass(frozen=True, kw_only=True)
class Past:
    """What one sequence has committed.

    Attributes:
        length: committed tokens.
        kept: (L, conv_size - 1, channels), the last rows before the convolution, oldest first.
        states: L states (value heads, key_dim, value_dim) float32.
    """

    length: int
    kept: Tensor
    states: tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One layer's inputs to the updates of some rows: keys, values, decays, betas, and the convolution's rows."""

    k: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor
    mixed: Tensor


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round of one sequence that waits for its commit.

    Attributes:
        past: as it was before.
        inputs: of the round's rows, for every layer.
        ends: for a chain, the states after its last row, for every layer; empty for a tree.
    """

    past: Past
    inputs: tuple[Inputs, ...]
    ends: tuple[Tensor, ...]


class DeltaState:
    """All sequences' states.

    Args:
        shape: of the layers.
        dtype: of the convolution's rows.
        device: of everything.
    """

    def __init__(self, shape: DeltaShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self._dtype, self._device = dtype, device
        self._pasts: dict[int, Past] = {}
        self._rounds: dict[int, Round] = {}

    @property
    def num_sequences(self) -> int:
        """Sequences with a committed state."""
        return len(self._pasts)

    def past(self, region: SlotRegion, length: int) -> Past:
        """Return a sequence's state after ``length`` tokens; the empty one at 0, whatever the region held before.

        Raises:
            EngineError: the state is at another length: it cannot be cut.
        """
        if length == 0:
            return self._empty()
        past = self._pasts.get(region.start)
        if past is None or past.length != length:
            held = "none" if past is None else f"{past.length} tokens"
            raise EngineError(f"recurrent state: {held}, expected one after {length} tokens")
        return past

    def begin(self, region: SlotRegion, round_: Round) -> None:
        """Keep what a commit will need; a round that was never committed is forgotten."""
        self._rounds[region.start] = round_

    def commit(self, region: SlotRegion, length: int, path: Sequence[int]) -> None:
        """Replace a sequence's state by the one after the path's last node, once a round.

        Args:
            region: the sequence's.
            length: committed tokens before the round.
            path: node indices from the root on; empty leaves the state as it is.

        Raises:
            EngineError: no round waits at that length.
        """
        round_ = self._rounds.pop(region.start, None)
        if round_ is None or round_.past.length != length:
            raise EngineError(f"commit: no round of the sequence waits at length {length}")
        if not path:
            return
        is_whole = bool(round_.ends) and len(path) == len(round_.inputs[0].k)
        states = round_.ends if is_whole else _replay(round_, path)
        rows = torch.stack([inputs.mixed[list(path)] for inputs in round_.inputs])
        kept = torch.cat((round_.past.kept, rows), 1)[:, -round_.past.kept.shape[1] :].clone()
        self._pasts[region.start] = Past(length=length + len(path), kept=kept, states=states)

    def copy(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        """Give a sequence's state to another region; False when it is not at that length."""
        past = self._pasts.get(source.start)
        if past is None or past.length != length:
            return False
        self._pasts[destination.start] = past
        return True

    def forget(self, region: SlotRegion) -> None:
        """Drop a region's state, if it has one."""
        self._pasts.pop(region.start, None)
        self._rounds.pop(region.start, None)

    def _empty(self) -> Past:
        shape = self.shape
        size = (shape.num_value_heads, shape.key_dim, shape.value_dim)
        state = torch.zeros(size, dtype=torch.float32, device=self._device)
        kept = (shape.num_layers, shape.conv_size - 1, shape.conv_channels)
        return Past(
            length=0,
            kept=torch.zeros(kept, dtype=self._dtype, device=self._device),
            states=(state,) * shape.num_layers,
        )


def update_(states: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> None:
    """Take one token into each state: decay it, and move what it reads at k towards v.

    Every operation but the sum over key_dim is on each element alone, and that sum has one order, so a state's bits
    depend on its own inputs only.

    Args:
        states: (m, value heads, key_dim, value_dim) float32, changed in place.
        k: (m, value heads, key_dim).
        v: (m, value heads, value_dim).
        decay, beta: (m, value heads).
    """
    states.mul_(decay[..., None, None])
    found = read(states, k)
    states.add_(k.unsqueeze(-1) * ((v - found) * beta.unsqueeze(-1)).unsqueeze(-2))


def read(states: Tensor, at: Tensor) -> Tensor:
    """Return what states hold at keys or queries (m, value heads, key_dim): (m, value heads, value_dim)."""
    return pairwise_sum_(states * at.unsqueeze(-1), -2).squeeze(-2)


def _replay(round_: Round, path: Sequence[int]) -> tuple[Tensor, ...]:
    """Run the path's updates again, for all layers at once."""
    states = torch.stack(round_.past.states)
    rows = list(path)
    k, v, decay, beta = (
        torch.stack([getattr(inputs, name)[rows] for inputs in round_.inputs], 1)
        for name in ("k", "v", "decay", "beta")
    )
    for step in range(len(rows)):
        update_(states, k[step], v[step], decay[step], beta[step])
    return states.unbind(0)
