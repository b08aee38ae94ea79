"""The draft head's keys and values for committed positions, in slots shared with the target's pool.

Knows nothing of how keys are made. A position's state lives in slot ``region.start + position`` of every layer. Which
positions hold state is recorded, so that a prefix without draft state is an error instead of a silent accept length
of 1.
"""

import torch
from torch import Tensor

from jetspec_engine.errors import EngineError
from jetspec_engine.protocol import SlotRegion


class ContextCache:
    """Preallocated keys and values of all layers.

    Args:
        num_layers, num_slots, num_kv_heads, head_dim: the pool's shape.
        device, dtype: of the tensors.

    Attributes:
        keys, values: (L, slots, kv heads, head_dim).
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        shape = (num_layers, num_slots, num_kv_heads, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self._num_slots = num_slots
        self._filled: dict[int, int] = {}

    def filled(self, region: SlotRegion) -> int:
        """Return how many leading positions of the region hold state."""
        return self._filled.get(region.start, 0)

    def claim(self, region: SlotRegion) -> None:
        """Take a region for a sequence: state recorded for other regions that overlap it is void from now on.

        Raises:
            EngineError: the region leaves the pool.
        """
        end = region.start + region.capacity
        if region.start < 0 or region.capacity < 0 or end > self._num_slots:
            raise EngineError(f"draft region: slots {region.start}..{end}, expected within 0..{self._num_slots}")
        self._filled = {
            start: count
            for start, count in self._filled.items()
            if start == region.start or start + count <= region.start or start >= end
        }

    def keep(self, region: SlotRegion, length: int) -> None:
        """Declare the first ``length`` positions valid and everything after them void.

        Raises:
            EngineError: they hold no state.
        """
        if length > self.filled(region):
            raise EngineError(f"draft state: {self.filled(region)} positions, expected the {length} of a cached prefix")
        self._filled[region.start] = length

    def append(self, region: SlotRegion, length: int, keys: Tensor, values: Tensor) -> None:
        """Write (L, T, kv heads, head_dim) keys and values as positions ``length .. length + T - 1``.

        Raises:
            EngineError: they do not fit the region, or positions before them hold no state.
        """
        end = length + keys.shape[1]
        if end > region.capacity:
            raise EngineError(f"draft region: {end} positions, expected at most its capacity {region.capacity}")
        self.keep(region, length)
        first = region.start + length
        self.keys[:, first : region.start + end] = keys
        self.values[:, first : region.start + end] = values
        self._filled[region.start] = end

    def copy(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        """Copy the first ``length`` positions; False when the source does not hold them or has no room for them."""
        if length > self.filled(source) or length > destination.capacity:
            return False
        if source.start != destination.start:
            self.claim(destination)
            for pool in (self.keys, self.values):
                # clone: regions never overlap when the engine lends them, but a wrong copy would go unnoticed.
                taken = pool[:, source.start : source.start + length].clone()
                pool[:, destination.start : destination.start + length] = taken
        self._filled[destination.start] = length
        return True
