"""Lends contiguous regions of cache slots, in whole pages.

Knows nothing of what the slots hold: the target's state and the drafter's are addressed by the same regions.
"""

from jetspec_engine.config import check_integer
from jetspec_engine.errors import EngineError
from jetspec_engine.protocol import SlotRegion


class PagePool:
    """A pool of ``num_pages * page_size`` slots, lent first fit.

    A sequence's slots are one run, so that its keys and values are views of the state and never gathered; the price
    is fragmentation, which a pool of a few sequences hardly has.

    Args:
        num_pages: pages in all, >= 1.
        page_size: slots per page, >= 1.

    Raises:
        ConfigError: a number out of range.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        check_integer("num_pages", num_pages, 1, 1 << 30)
        check_integer("page_size", page_size, 1, 1 << 30)
        self.num_pages = num_pages
        self.page_size = page_size
        self._lent: dict[int, SlotRegion] = {}
        self._gaps: list[tuple[int, int]] = [(0, num_pages)]

    @property
    def num_slots(self) -> int:
        """Slots in all."""
        return self.num_pages * self.page_size

    @property
    def num_free_pages(self) -> int:
        """Pages not lent."""
        return sum(count for _, count in self._gaps)

    def allocate(self, capacity: int) -> SlotRegion | None:
        """Lend a region of at least ``capacity`` slots.

        Args:
            capacity: slots needed, >= 1; rounded up to whole pages.

        Returns:
            The lowest region that fits, or None while there is none.

        Raises:
            ConfigError: a capacity below 1.
        """
        check_integer("capacity", capacity, 1, 1 << 60)
        wanted = -(-capacity // self.page_size)
        for place, (first, count) in enumerate(self._gaps):
            if count < wanted:
                continue
            self._gaps[place : place + 1] = [(first + wanted, count - wanted)] if count > wanted else []
            region = SlotRegion(start=first * self.page_size, capacity=wanted * self.page_size)
            self._lent[region.start] = region
            return region
        return None

    def free(self, region: SlotRegion) -> None:
        """Take a region back, exactly as it was lent.

        Raises:
            EngineError: the region is not lent, e.g. freed a second time.
        """
        if self._lent.get(region.start) != region:
            raise EngineError(f"cache region: slots {region.start}..{region.start + region.capacity - 1} are not lent")
        del self._lent[region.start]
        self._gaps.append((region.start // self.page_size, self.count_pages(region)))
        self._gaps = _merged(self._gaps)

    def count_pages(self, region: SlotRegion) -> int:
        """Return how many pages a region holds."""
        return region.capacity // self.page_size


def _merged(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the gaps in order, with neighbours joined."""
    joined: list[tuple[int, int]] = []
    for first, count in sorted(gaps):
        if joined and sum(joined[-1]) == first:
            joined[-1] = (joined[-1][0], joined[-1][1] + count)
        else:
            joined.append((first, count))
    return joined
