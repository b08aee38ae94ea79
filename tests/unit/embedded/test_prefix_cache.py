"""The prefix cache alone: what is reused, what is copied, what is dropped, and that no page is lost."""

from dataclasses import dataclass, field

import pytest

from jetspec_engine.embedded.prefix_cache import Placement, PrefixCache
from jetspec_engine.protocol import SlotRegion
from support.fake_target import FakePool


@dataclass
class Copies:
    """State that can be cut or not; notes every copy."""

    can_cut: bool = True
    seen: list[tuple[int, int, int]] = field(default_factory=list)

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        self.seen.append((source.start, destination.start, length))
        return self.can_cut


@dataclass
class Bench:
    num_slots: int = 160
    target: Copies = field(default_factory=Copies)
    drafter: Copies = field(default_factory=Copies)

    def __post_init__(self) -> None:
        self.pool = FakePool(self.num_slots, page_size=16)
        self.cache = PrefixCache(self.pool, self.target, self.drafter)

    def keep(self, tokens: list[int], *, capacity: int = 32, draft_length: int | None = None) -> SlotRegion:
        region = self.pool.allocate(capacity)
        assert region is not None
        self.cache.insert(tokens, region, len(tokens) if draft_length is None else draft_length)
        return region

    def place(self, prompt: list[int], capacity: int = 32, *, is_drafting: bool = True) -> Placement:
        placement = self.cache.place(prompt, capacity, is_drafting=is_drafting)
        assert placement is not None
        return placement


def test_an_empty_cache_lends_an_empty_region() -> None:
    placement = Bench().place([1, 2, 3])
    assert (placement.num_cached, placement.draft_length) == (0, 0)


def test_a_sequence_the_prompt_continues_is_taken_over_without_a_copy() -> None:
    bench = Bench()
    region = bench.keep([1, 2, 3])
    assert bench.place([1, 2, 3, 4]) == Placement(region=region, num_cached=3, draft_length=3)
    assert bench.target.seen == []
    assert bench.cache.num_pages == 0


def test_the_prompts_last_token_is_never_reused() -> None:
    bench = Bench()
    bench.keep([1, 2, 3])
    assert bench.place([1, 2, 3]).num_cached == 2
    assert bench.place([1]).num_cached == 0


def test_a_region_that_is_too_small_is_copied_from() -> None:
    bench = Bench()
    small = bench.keep([1, 2, 3], capacity=16)
    placement = bench.place([1, 2, 3, 4], 48)
    assert placement.num_cached == 3
    assert bench.target.seen == bench.drafter.seen == [(small.start, placement.region.start, 3)]


def test_the_longest_common_prefix_wins() -> None:
    bench = Bench()
    bench.keep([1, 2, 9])
    longest = bench.keep([1, 2, 3, 4, 9])
    placement = bench.place([1, 2, 3, 4, 5, 6])
    assert placement.num_cached == 4
    assert bench.target.seen == [(longest.start, placement.region.start, 4)]


def test_draft_state_limits_what_a_drafting_request_reuses_and_no_other() -> None:
    bench = Bench()
    bench.keep([1, 2, 3, 4], draft_length=2)
    assert bench.place([1, 2, 3, 4, 5]).num_cached == 2
    plain = bench.place([1, 2, 3, 4, 5], is_drafting=False)
    assert (plain.num_cached, plain.draft_length) == (4, 2)


def test_a_copy_for_a_plain_request_brings_no_draft_state() -> None:
    bench = Bench()
    bench.keep([1, 2, 3, 9])
    plain = bench.place([1, 2, 3, 4], is_drafting=False)
    assert (plain.num_cached, plain.draft_length) == (3, 0)
    assert bench.drafter.seen == []


def test_a_region_that_is_cut_keeps_draft_state_up_to_the_cut() -> None:
    bench = Bench(num_slots=32)
    region = bench.keep([1, 2, 3, 9])
    assert bench.place([1, 2, 3, 4], is_drafting=False) == Placement(region=region, num_cached=3, draft_length=3)


@pytest.mark.parametrize("who", ["target", "drafter"])
def test_state_that_cannot_be_cut_means_no_reuse(who: str) -> None:
    bench = Bench()
    getattr(bench, who).can_cut = False
    bench.keep([1, 2, 3, 9])
    assert bench.place([1, 2, 3, 4]).num_cached == 0


def test_the_least_recently_used_prefix_gives_way_first() -> None:
    bench = Bench(num_slots=96)
    bench.keep([1, 1])
    bench.keep([2, 2])
    bench.keep([3, 3])
    assert bench.place([1, 1, 5], 16, is_drafting=True).num_cached == 2
    assert bench.place([9], 32).num_cached == 0
    assert [entry.tokens.tolist() for entry in bench.cache._entries] == [[3, 3]]


def test_the_source_of_a_copy_is_not_evicted_for_it() -> None:
    bench = Bench(num_slots=96)
    bench.keep([1, 2, 3])
    bench.keep([7, 7])
    bench.keep([8, 8])
    placement = bench.place([1, 2, 9])
    assert placement.num_cached == 2
    assert sorted(entry.tokens.tolist() for entry in bench.cache._entries) == [[1, 2, 3], [8, 8]]


def test_no_room_is_none_and_nothing_is_lost() -> None:
    bench = Bench(num_slots=32)
    held = bench.place([1, 2, 3])
    assert bench.cache.place([4, 5], 16, is_drafting=True) is None
    bench.cache.free(held.region)
    assert bench.pool.num_free_pages == bench.pool.num_pages


def test_a_sequence_that_another_holds_is_not_kept_twice() -> None:
    bench = Bench()
    bench.keep([1, 2, 3])
    bench.keep([1, 2])
    bench.keep([1, 2, 3])
    assert len(bench.cache._entries) == 1
    bench.keep([1, 2, 3, 4])
    assert [entry.tokens.tolist() for entry in bench.cache._entries] == [[1, 2, 3, 4]]
    assert bench.cache.num_pages == 2


def test_draft_state_is_not_given_up_for_length() -> None:
    bench = Bench()
    bench.keep([1, 2, 3])
    bench.keep([1, 2, 3, 4], draft_length=0)
    assert len(bench.cache._entries) == 2


def test_a_copy_that_raises_gives_its_region_back() -> None:
    bench = Bench()
    bench.keep([1, 2, 3])
    bench.target.copy_prefix = lambda *args: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        bench.place([1, 2, 9])
    bench.cache.flush()
    assert bench.pool.num_free_pages == bench.pool.num_pages


def test_prefixes_beyond_the_limit_go_oldest_first_but_the_last_one_stays() -> None:
    bench = Bench()
    bench.cache = PrefixCache(bench.pool, bench.target, bench.drafter, max_pages=3)
    for number in range(4):
        bench.keep([number, number], capacity=16)
    assert [entry.tokens[0] for entry in bench.cache._entries] == [1, 2, 3]
    bench.keep([9, 9], capacity=80)
    assert [entry.tokens[0] for entry in bench.cache._entries] == [9]
    bench.cache.flush()
    assert bench.pool.num_free_pages == bench.pool.num_pages
