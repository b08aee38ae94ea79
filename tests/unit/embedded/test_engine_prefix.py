"""Prefix reuse through the whole engine: right text, the same acceptance, honest counts (case 21)."""

import pytest

from jetspec_engine.config import PLAIN, TreeConfig
from support.engine_runs import LINEAR_AND_WIDE, WIDE, engine_rig, said

PROMPT = tuple(range(3, 33))


@pytest.mark.parametrize("tree", LINEAR_AND_WIDE)
def test_case_21_a_prefix_hit_changes_neither_text_nor_acceptance(tree: TreeConfig) -> None:
    with engine_rig("mixed", tree=tree) as rig:
        cold = rig.run(PROMPT, max_new_tokens=40, ignore_eos=True)
        warm = rig.run(PROMPT, max_new_tokens=40, ignore_eos=True)
        assert cold.stats.num_cached_tokens == 0
        assert warm.stats.num_cached_tokens == len(PROMPT) - 1
        assert warm.ids == cold.ids == said(PROMPT, 40)
        assert warm.stats.accept_histogram == cold.stats.accept_histogram
        rig.engine.flush_cache()
        assert rig.run(PROMPT, max_new_tokens=1).stats.num_cached_tokens == 0


@pytest.mark.parametrize("tree", [PLAIN, *LINEAR_AND_WIDE])
def test_case_21_a_continued_conversation_reuses_what_was_committed(tree: TreeConfig) -> None:
    with engine_rig("right", tree=tree) as rig:
        first = rig.run(PROMPT, max_new_tokens=20, ignore_eos=True)
        longer = (*PROMPT, *first.ids, 7, 8, 9)
        second = rig.run(longer, max_new_tokens=19, ignore_eos=True)
        # The last emitted token, a bonus, has no state.
        assert second.stats.num_cached_tokens == len(PROMPT) + len(first.ids) - 1
        assert second.ids == said(longer, 19)
        rig.engine.flush_cache()
        fresh = rig.run(longer, max_new_tokens=19, ignore_eos=True)
        assert fresh.stats.accept_histogram == second.stats.accept_histogram


def test_a_shared_beginning_is_copied_so_that_both_stay() -> None:
    with engine_rig("mixed") as rig:
        rig.run((*PROMPT, 4), max_new_tokens=5, ignore_eos=True)
        other = rig.run((*PROMPT, 9), max_new_tokens=5, ignore_eos=True)
        assert other.stats.num_cached_tokens == len(PROMPT)
        assert other.ids == said((*PROMPT, 9), 5)
        again = rig.run((*PROMPT, 4), max_new_tokens=5, ignore_eos=True)
        assert again.stats.num_cached_tokens == len(PROMPT)
        assert again.ids == said((*PROMPT, 4), 5)


def test_without_room_for_a_copy_the_region_is_cut_and_taken_over() -> None:
    with engine_rig("mixed", num_slots=96, max_seq_len=64) as rig:
        rig.run((*PROMPT, 4), max_new_tokens=12, ignore_eos=True)
        other = rig.run((*PROMPT, 9), max_new_tokens=12, ignore_eos=True)
        assert other.stats.num_cached_tokens == len(PROMPT)
        assert other.ids == said((*PROMPT, 9), 12)


def test_cached_prefixes_give_way_to_requests() -> None:
    with engine_rig("mixed", num_slots=256, max_seq_len=128) as rig:
        for n in range(20):
            prompt = tuple(3 + (n * 7 + i * (n + 1)) % 35 for i in range(40))
            assert rig.run(prompt, max_new_tokens=30, ignore_eos=True).ids == said(prompt, 30)
        counters = rig.engine.counters()
        assert 0 < counters["pages_cached"] < counters["pages_total"]


def test_two_requests_with_one_prefix_run_at_once() -> None:
    with engine_rig("mixed", max_running=3) as rig:
        rig.run(PROMPT, max_new_tokens=5, ignore_eos=True)
        together = [rig.submit((*PROMPT, n), max_new_tokens=25, ignore_eos=True) for n in range(6)]
        for n, result in enumerate(together):
            assert result.wait().ids == said((*PROMPT, n), 25)
            assert result.stats.num_cached_tokens >= len(PROMPT)


def test_a_plainly_decoded_prefix_has_no_draft_state_and_is_not_drafted_from() -> None:
    with engine_rig("right") as rig:
        cold = rig.run(PROMPT, max_new_tokens=20, ignore_eos=True)
        rig.engine.flush_cache()
        rig.engine.set_tree(PLAIN)
        rig.run(PROMPT, max_new_tokens=20, ignore_eos=True)
        assert rig.run(PROMPT, max_new_tokens=20, ignore_eos=True).stats.num_cached_tokens == len(PROMPT) - 1
        rig.engine.set_tree(WIDE)
        drafted = rig.run(PROMPT, max_new_tokens=20, ignore_eos=True)
        assert drafted.stats.num_cached_tokens == 0
        assert drafted.stats.accept_histogram == cold.stats.accept_histogram
        rig.engine.set_tree(PLAIN)
        assert rig.run(PROMPT, max_new_tokens=20, ignore_eos=True).stats.num_cached_tokens == len(PROMPT) - 1


def test_a_drafted_prefix_that_was_continued_plainly_is_drafted_from_up_to_there() -> None:
    with engine_rig("right") as rig:
        rig.run(PROMPT, max_new_tokens=1)
        rig.engine.set_tree(PLAIN)
        longer = (*PROMPT, 5, 6, 7)
        assert rig.run(longer, max_new_tokens=9, ignore_eos=True).stats.num_cached_tokens == len(PROMPT)
        rig.engine.set_tree(WIDE)
        drafted = rig.run(longer, max_new_tokens=9, ignore_eos=True)
        assert drafted.stats.num_cached_tokens == len(PROMPT)
        assert drafted.ids == said(longer, 9)


def test_a_target_whose_state_cannot_be_cut_gets_no_reuse_but_right_text() -> None:
    with engine_rig("mixed", can_cut=False) as rig:
        rig.run(PROMPT, max_new_tokens=20, ignore_eos=True)
        again = rig.run(PROMPT, max_new_tokens=20, ignore_eos=True)
        assert again.stats.num_cached_tokens == 0
        assert again.ids == said(PROMPT, 20)


def test_what_an_aborted_request_committed_can_be_reused() -> None:
    with engine_rig("mixed") as rig:
        rig.run(PROMPT, max_new_tokens=0)
        assert rig.run(PROMPT, max_new_tokens=1).stats.num_cached_tokens == 0
        assert rig.run(PROMPT, max_new_tokens=1).stats.num_cached_tokens == len(PROMPT) - 1
