"""Keys and values of every layer for many sequences, in one static allocation.

Knows no model and no page: a region's position p is slot ``start + p``. Layers come first in the tensors, so that
moving an accepted path's slots is one gather and one write for all layers together.
"""

from collections.abc import Sequence

import torch

from jetspec_engine.protocol import SlotRegion


class KeyValueState:
    """The static caches.

    Args:
        num_layers, num_heads, num_slots, head_dim: of the key and value heads.
        key_dtype, value_dtype: as the attention's arithmetic stores them.
        num_guard_slots: slots beyond the pool that may be read but are never written, for reads of a fixed least
            length.
        device: where to allocate.

    Attributes:
        keys: (L, heads, num_slots + num_guard_slots, head_dim).
        values: (L, heads, num_slots, head_dim).
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        num_slots: int,
        head_dim: int,
        key_dtype: torch.dtype,
        value_dtype: torch.dtype,
        num_guard_slots: int,
        device: torch.device,
    ) -> None:
        shape = (num_layers, num_heads, num_slots + num_guard_slots, head_dim)
        # Left uninitialised: no slot's content is used before it is written, and untouched memory stays unmapped.
        self.keys = torch.empty(shape, dtype=key_dtype, device=device)
        self.values = torch.empty((*shape[:2], num_slots, head_dim), dtype=value_dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes allocated (on a CPU mapped only once touched)."""
        return self.keys.nbytes + self.values.nbytes

    def keep_path(self, region: SlotRegion, length: int, path: Sequence[int]) -> None:
        """Move the slots of the path's nodes to positions ``length`` and on.

        Args:
            region: the sequence's slots.
            length: committed positions; node i was written at position ``length + i``.
            path: ascending node indices.
        """
        nodes = list(path)
        # Nodes already in place need no move: a chain's whole path, and any path's beginning.
        stay = next((place for place, node in enumerate(nodes) if node != place), len(nodes))
        if stay == len(nodes):
            return
        root = region.start + length
        index = torch.tensor([root + node for node in nodes[stay:]], device=self.keys.device)
        first, last = root + stay, root + len(nodes)
        # index_select copies before the write, so overlapping moves are safe.
        self.keys[:, :, first:last] = self.keys.index_select(2, index)
        self.values[:, :, first:last] = self.values.index_select(2, index)

    def copy(self, source: SlotRegion, destination: SlotRegion, length: int) -> None:
        """Copy the first ``length`` positions of one region to another; nothing to do for a region and itself."""
        if source.start == destination.start:
            return
        for tensor in (self.keys, self.values):
            tensor[:, :, destination.start : destination.start + length] = tensor[
                :, :, source.start : source.start + length
            ]
