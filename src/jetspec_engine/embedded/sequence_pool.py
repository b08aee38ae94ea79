"""A pool of pages that lends only so many regions, and tells when one comes back.

A recurrent state belongs to a region as a whole, not to its pages, so the number of regions bounds its memory, and
the state must go when the region does. Knows nothing of what a state is.
"""

from collections.abc import Callable

from jetspec_engine.config import check_integer
from jetspec_engine.embedded.pages import PagePool
from jetspec_engine.protocol import SlotRegion


class SequencePool:
    """``prefix_cache.RegionPool`` over a pool of pages.

    Args:
        pages: lends the pages.
        max_regions: most regions lent at once, >= 1; beyond them ``allocate`` finds no room, as when pages are out.
        on_free: called with every region that comes back.

    Raises:
        ConfigError: a number out of range.
    """

    def __init__(self, pages: PagePool, max_regions: int, on_free: Callable[[SlotRegion], None]) -> None:
        check_integer("max_regions", max_regions, 1, 1 << 30)
        self._pages = pages
        self._max_regions = max_regions
        self._on_free = on_free
        self._num_lent = 0

    @property
    def num_pages(self) -> int:
        """Pages in all."""
        return self._pages.num_pages

    @property
    def num_free_pages(self) -> int:
        """Pages not lent."""
        return self._pages.num_free_pages

    def allocate(self, capacity: int) -> SlotRegion | None:
        """Lend a region of at least ``capacity`` slots, or None while there is no room for it or its state."""
        if self._num_lent == self._max_regions:
            return None
        region = self._pages.allocate(capacity)
        self._num_lent += region is not None
        return region

    def free(self, region: SlotRegion) -> None:
        """Take a region back and its state with it. Raises EngineError when it is not lent."""
        self._pages.free(region)
        self._num_lent -= 1
        self._on_free(region)

    def count_pages(self, region: SlotRegion) -> int:
        """Return how many pages a region holds."""
        return self._pages.count_pages(region)
