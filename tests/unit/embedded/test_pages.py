"""The page pool: regions never overlap, and every page comes back (case 11)."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.embedded.pages import PagePool
from jetspec_engine.errors import ConfigError, EngineError
from jetspec_engine.protocol import SlotRegion


@pytest.mark.parametrize("page_size", [1, 16, 64])
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 200)), max_size=60))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_case_11_regions_never_overlap_and_every_page_returns(page_size: int, steps: list[tuple[bool, int]]) -> None:
    pool = PagePool(32, page_size)
    lent: list[SlotRegion] = []
    for is_freeing, number in steps:
        if is_freeing and lent:
            pool.free(lent.pop(number % len(lent)))
        else:
            region = pool.allocate(number)
            if region is None:
                # First fit: there was no run of free pages that long.
                wanted = -(-number // page_size)
                taken = {slot // page_size for r in lent for slot in range(r.start, r.start + r.capacity)}
                runs = "".join("x" if page in taken else "." for page in range(pool.num_pages)).split("x")
                assert max(len(run) for run in runs) < wanted
                continue
            assert number <= region.capacity < number + page_size
            assert region.start % page_size == region.capacity % page_size == 0
            lent.append(region)
        used = sorted((region.start, region.start + region.capacity) for region in lent)
        assert all(low >= 0 and high <= pool.num_slots for low, high in used)
        assert all(a[1] <= b[0] for a, b in pairwise(used))
        assert pool.num_free_pages == pool.num_pages - sum(pool.count_pages(region) for region in lent)
    for region in lent:
        pool.free(region)
    assert pool.num_free_pages == pool.num_pages
    whole = pool.allocate(pool.num_slots)
    assert whole == SlotRegion(start=0, capacity=pool.num_slots)


def test_the_lowest_gap_that_fits_is_lent() -> None:
    pool = PagePool(6, 16)
    first, second, third = (pool.allocate(32) for _ in range(3))
    assert pool.allocate(1) is None
    pool.free(first)
    pool.free(third)
    assert pool.allocate(16) == SlotRegion(start=0, capacity=16)
    assert pool.allocate(17) == third
    pool.free(second)
    assert pool.allocate(48) == SlotRegion(start=16, capacity=48)


@pytest.mark.parametrize("other", [SlotRegion(start=0, capacity=16), SlotRegion(start=16, capacity=16)])
def test_case_11_a_region_that_is_not_lent_is_refused(other: SlotRegion) -> None:
    pool = PagePool(4, 16)
    region = pool.allocate(32)
    with pytest.raises(EngineError, match="not lent"):
        pool.free(other)
    pool.free(region)
    with pytest.raises(EngineError, match=r"slots 0\.\.31 are not lent"):
        pool.free(region)
    assert pool.num_free_pages == 4


@pytest.mark.parametrize(("num_pages", "page_size", "capacity"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_bad_numbers_are_refused(num_pages: int, page_size: int, capacity: int) -> None:
    with pytest.raises(ConfigError, match="expected an integer"):
        PagePool(num_pages, page_size).allocate(capacity)
