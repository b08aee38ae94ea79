"""Admission: in order of arrival, with the slots a request can need and no more than there are."""

import pytest

from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.embedded.prefix_cache import PrefixCache
from jetspec_engine.embedded.request import ActiveRequest
from jetspec_engine.embedded.round import Parts
from jetspec_engine.embedded.scheduler import Scheduler, slots_needed
from jetspec_engine.embedded.stops import EndRules
from jetspec_engine.models.detokenizer import Detokenizer
from jetspec_engine.records import FinishReason, GenerateRequest, SamplingParams
from jetspec_engine.tree.rules import BUILDERS
from support.engine_runs import WIDE
from support.fake_target import FakeDrafter, FakePool, FakeTarget, FakeTokenizer


def parts(tree: TreeConfig = WIDE) -> Parts:
    return Parts(target=FakeTarget(), drafter=FakeDrafter(), builder=BUILDERS["best_first"], tree=tree, prefill_chunk=8)


def request(name: str, num_prompt: int, cap: int) -> ActiveRequest:
    sampling = SamplingParams(max_new_tokens=cap)
    asked = GenerateRequest(request_id=name, input_ids=tuple(range(3, 3 + num_prompt)), sampling=sampling)
    text = Detokenizer(FakeTokenizer(), skip_special_tokens=True)
    return ActiveRequest(asked, lambda event: None, EndRules.of(sampling, (), 1000), text)


def scheduler(num_slots: int, made: Parts, *, max_running: int = 4) -> Scheduler:
    return Scheduler(PrefixCache(FakePool(num_slots, 16), made.target, made.drafter), max_running)


@pytest.mark.parametrize(
    ("tree", "rows"),
    [
        (PLAIN, 1),
        (LINEAR, 6),
        (WIDE, 12),
        (TreeConfig(width=4, budget=2), 6),  # the head's own block of D + 1
    ],
)
def test_R35_room_for_prompt_answer_and_the_rows_of_a_round(tree: TreeConfig, rows: int) -> None:
    assert slots_needed(request("a", 10, 20), parts(tree)) == 30 + rows


def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    made = parts()
    queue = scheduler(64, made)
    for name, cap in (("a", 10), ("large", 30), ("small", 1)):
        queue.waiting.append(request(name, 10, cap))
    queue.admit(made)
    assert [r.request_id for r in queue.running] == ["a"]
    queue.running[0].end(FinishReason(kind="abort"))
    assert [r.request_id for r in queue.take_finished()] == ["a"]
    queue.admit(made)
    assert [r.request_id for r in queue.running] == ["large"]


def test_no_more_than_max_running_hold_a_region() -> None:
    made = parts()
    queue = scheduler(4096, made, max_running=2)
    for number in range(3):
        queue.waiting.append(request(str(number), 4, 4))
    queue.admit(made)
    assert len(queue.running) == 2
    assert all(r.region is not None for r in queue.running)
    assert queue.waiting[0].region is None


def test_a_request_that_can_never_fit_fails_instead_of_waiting_for_ever() -> None:
    made = parts()
    queue = scheduler(32, made)
    queue.waiting.append(request("huge", 10, 500))
    queue.admit(made)
    (failed,) = queue.take_finished()
    assert failed.finish is not None
    assert failed.finish.message == "cache: no room for 522 slots though nothing runs"
    assert queue.is_idle
