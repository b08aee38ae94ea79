"""One request's text, events and counters."""

import pytest

from jetspec_engine.embedded.counters import Counters, check_identities
from jetspec_engine.embedded.request import ActiveRequest
from jetspec_engine.embedded.stops import EndRules
from jetspec_engine.errors import EngineError
from jetspec_engine.models.detokenizer import Detokenizer
from jetspec_engine.records import FinishReason, GenerateRequest, RequestStats, SamplingParams
from support.fake_target import EOS_ID, FakeTokenizer


def make(**sampling: object) -> ActiveRequest:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    tokenizer = FakeTokenizer()
    text = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
    request = GenerateRequest(request_id="r", input_ids=(3, 4), sampling=params)
    return ActiveRequest(request, lambda event: None, EndRules.of(params, tokenizer.eos_token_ids, 100), text)


def test_case_23_deltas_join_to_the_text_and_show_no_broken_character() -> None:
    request = make(max_new_tokens=6)
    deltas = []
    for token in (22, 23, 26, 27, 20, 21):  # an emoji, a CJK character and an accent, in halves
        request.emit(token)
        event = request.take_event()
        assert event is not None
        assert event.token_ids == (token,)
        deltas.append(event.text)
    assert deltas == ["", "😀", "", "日", "", "é"]


def test_held_text_is_released_later() -> None:
    request = make(stop=("abX",), max_new_tokens=9)
    texts = []
    for token in (3, 4, 5):
        request.emit(token)
        event = request.take_event()
        assert event is not None
        texts.append(event.text)
    assert texts == ["", "", "abc"]


def test_nothing_new_is_no_event() -> None:
    request = make()
    assert request.take_event() is None
    request.emit(5)
    assert request.take_event() is not None
    assert request.take_event() is None


def test_the_first_reason_to_end_stays() -> None:
    request = make()
    request.emit(EOS_ID)
    request.end(FinishReason(kind="abort"))
    request.fail(ValueError("late"))
    assert request.finish == FinishReason(kind="stop", matched=EOS_ID)


def test_the_last_event_has_finish_and_stats() -> None:
    request = make(max_new_tokens=1)
    request.emit(5)
    request.count_round(1, 0, 0)
    event = request.take_event()
    assert event is not None
    assert event.finish == FinishReason(kind="length")
    assert event.stats is request.stats
    check_identities(request.stats)


@pytest.mark.parametrize(
    "stats",
    [
        RequestStats(num_rounds=2, num_emitted_tokens=1, accept_histogram=[0, 1]),
        RequestStats(num_rounds=1, num_emitted_tokens=2, accept_histogram=[0, 1]),
        RequestStats(num_rounds=1, num_emitted_tokens=1, accept_histogram=[0, 1], num_correct_drafts=1),
    ],
)
def test_stats_that_do_not_add_up_are_an_error(stats: RequestStats) -> None:
    with pytest.raises(EngineError):
        check_identities(stats)


def test_counters_sort_requests_by_how_they_ended() -> None:
    counters = Counters()
    stats = RequestStats(num_rounds=2, num_emitted_tokens=5, num_cached_tokens=3)
    for kind in ("stop", "length", "abort", "error"):
        counters.add_request(stats, kind)
    totals = counters.totals()
    assert (totals["requests_finished"], totals["requests_aborted"], totals["requests_failed"]) == (2, 1, 1)
    assert (totals["rounds"], totals["emitted_tokens"], totals["cached_tokens"]) == (8, 20, 12)
