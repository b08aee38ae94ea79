"""Requests come and go: refusal, queueing, abort, failures, switching, closing, memory."""

import random
import threading
import time
from typing import Any

import pytest

from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.errors import BusyError, ConfigError, EngineError, RequestError
from jetspec_engine.records import GenerateRequest, StepEvent
from support.engine_runs import WIDE, Collected, engine_rig, said
from support.fake_target import VOCAB_SIZE

PROMPT = tuple(range(3, 20))


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ((), {}, "input_ids: empty"),
        ((3, VOCAB_SIZE), {}, r"input_ids\[1\]: 40, expected a token id in \[0, 39\]"),
        ((-1,), {}, r"input_ids\[0\]: -1"),
        ((True,), {}, r"input_ids\[0\]: True"),
        ((3,) * 256, {}, "input_ids: 256 tokens, expected at most 255"),
        ((3,), {"max_new_tokens": -1}, "max_new_tokens: -1"),
        ((3,), {"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens: 9"),
        ((3,), {"stop": ("a", "")}, "stop: an empty string"),
        ((3,), {"stop_token_ids": (40,)}, "stop_token_ids: 40"),
        ((3,), {"top_k": 41}, "logprobs_top_k: 41"),
    ],
)
def test_case_24_a_bad_request_is_refused_and_the_engine_lives(ids: Any, options: Any, message: str) -> None:
    with engine_rig() as rig:
        with pytest.raises(RequestError, match=message):
            rig.submit(ids, **options)
        assert rig.run(PROMPT, max_new_tokens=3).ids == said(PROMPT, 3)


@pytest.mark.parametrize("tree", [PLAIN, LINEAR, WIDE])
@pytest.mark.parametrize("missing", [2, 1, 5, 12, 0, -1])
def test_case_18_prompts_near_the_context_limit(tree: TreeConfig, missing: int) -> None:
    context = 64
    prompt = tuple(3 + i % 30 for i in range(context - missing))
    with engine_rig("right", tree=tree, max_seq_len=context) as rig:
        neighbour = rig.submit(PROMPT, max_new_tokens=40, ignore_eos=True)
        if missing <= 0:
            with pytest.raises(RequestError, match=f"{context - missing} tokens, expected at most {context - 1}"):
                rig.submit(prompt, max_new_tokens=40, ignore_eos=True)
        else:
            result = rig.run(prompt, max_new_tokens=40, ignore_eos=True)
            assert result.ids == said(prompt, missing)
            assert result.finish.kind == "length"
        assert neighbour.wait().ids == said(PROMPT, 40)


def test_a_full_queue_is_refused_and_a_running_id_too() -> None:
    with engine_rig(max_running=1, max_queued=1) as rig:
        gate = threading.Event()
        rig.target.before_verify = lambda items: gate.wait(10) and None
        first = rig.submit(PROMPT, request_id="a", max_new_tokens=5)
        with pytest.raises(RequestError, match="'a' is running already"):
            rig.submit(PROMPT, request_id="a")
        second = rig.submit(PROMPT, request_id="b", max_new_tokens=5)
        with pytest.raises(BusyError, match="2 requests running and waiting"):
            rig.submit(PROMPT, request_id="c")
        gate.set()
        assert first.wait().ids == second.wait().ids == said(PROMPT, 5)
        assert rig.run(PROMPT, request_id="a", max_new_tokens=5).ids == said(PROMPT, 5)


def test_case_25_an_aborted_request_ends_and_returns_its_memory() -> None:
    with engine_rig("wrong", max_running=1) as rig:
        reached = threading.Event()
        events: list[StepEvent] = []

        def on_event(event: StepEvent) -> None:
            events.append(event)
            if len(events) == 3 or event.finish is not None:
                reached.set()

        request = GenerateRequest(request_id="x", input_ids=PROMPT)
        rig.target.before_verify = lambda items: time.sleep(0.002)
        rig.engine.submit(request, on_event)
        queued = rig.submit(PROMPT, request_id="queued", max_new_tokens=5)
        assert reached.wait(10)
        assert rig.engine.abort("x")
        assert rig.engine.abort("queued")
        assert queued.wait().finish.kind == "abort"
        rig.engine.flush_cache()
        assert events[-1].finish is not None
        assert events[-1].finish.kind == "abort"
        assert rig.pool.num_free_pages == rig.pool.num_pages
        assert not rig.engine.abort("x")
        assert rig.engine.counters()["requests_aborted"] == 2


def test_case_25_a_waiting_request_that_is_aborted_ends_while_the_one_before_it_runs() -> None:
    with engine_rig("wrong", max_running=1) as rig:
        rig.target.before_verify = lambda items: time.sleep(0.002)
        running = rig.submit(PROMPT, max_new_tokens=200, ignore_eos=True)
        waiting = rig.submit(PROMPT, request_id="waiting", max_new_tokens=5)
        assert rig.engine.abort("waiting")
        assert waiting.wait().finish.kind == "abort"
        assert not running.done.is_set()
        rig.engine.abort("")
        running.wait()


def test_the_empty_id_aborts_all() -> None:
    with engine_rig("wrong", max_running=2) as rig:
        rig.target.before_verify = lambda items: time.sleep(0.001)
        running = [rig.submit(PROMPT, max_new_tokens=200, ignore_eos=True) for _ in range(5)]
        assert rig.engine.abort("")
        assert {r.wait().finish.kind for r in running} == {"abort"}
        assert not rig.engine.abort("")


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_case_11_500_requests_with_aborts_leak_no_page(page_size: int) -> None:
    rng = random.Random(0)
    with engine_rig("mixed", page_size=page_size, max_running=4, max_queued=500, num_slots=1024) as rig:
        running = []
        for number in range(500):
            prompt = tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randrange(1, 12)))
            collected = rig.submit(prompt, request_id=str(number), max_new_tokens=rng.randrange(0, 12))
            running.append((prompt, collected))
            if rng.random() < 0.3:
                rig.engine.abort(str(rng.randrange(number + 1)))
        kinds = []
        for prompt, collected in running:
            kinds.append(collected.wait().finish.kind)
            assert collected.ids == said(prompt, len(collected.ids))
        assert kinds.count("abort") > 5
        assert set(kinds) <= {"abort", "length", "stop"}
        counters = rig.engine.counters()
        assert counters["pages_free"] + counters["pages_cached"] == counters["pages_total"]
        rig.engine.flush_cache()
        counters = rig.engine.counters()
        assert counters["pages_free"] == counters["pages_total"]
        assert counters["requests_finished"] + counters["requests_aborted"] == 500
        assert not rig.drafter.open_sessions


def test_a_request_without_room_waits_for_its_region() -> None:
    with engine_rig("mixed", num_slots=160, max_seq_len=128, max_running=4, page_size=16) as rig:
        running = [rig.submit((*PROMPT, i), max_new_tokens=60, ignore_eos=True) for i in range(6)]
        for i, result in enumerate(running):
            assert result.wait().ids == said((*PROMPT, i), 60)
        assert rig.target.largest_batch == 1


def test_a_failing_drafter_ends_its_requests_and_the_engine_stays() -> None:
    def explode() -> None:
        raise ValueError("broken head")

    with engine_rig("mixed") as rig:
        rig.drafter.before_propose = explode
        result = rig.run(PROMPT, max_new_tokens=30)
        assert result.finish.kind == "error"
        assert result.finish.message == "ValueError: broken head"
        assert result.ids == said(PROMPT, 1)
        # What a failed request wrote is not kept.
        assert rig.pool.num_free_pages == rig.pool.num_pages
        rig.drafter.before_propose = lambda: None
        assert rig.run(PROMPT, max_new_tokens=30, ignore_eos=True).ids == said(PROMPT, 30)
        assert rig.engine.counters()["requests_failed"] == 1


def test_a_failing_prefill_ends_that_request_only() -> None:
    def explode(items: Any) -> None:
        if items[0].length == 7 and items[0].tree.tokens[0] == PROMPT[8]:
            raise EngineError("kernel: lost")

    with engine_rig("mixed") as rig:
        rig.target.before_verify = explode
        good = rig.submit(PROMPT, max_new_tokens=30, ignore_eos=True)
        bad = rig.submit(PROMPT[1:], max_new_tokens=30)
        assert (bad.wait().finish.kind, bad.finish.message) == ("error", "kernel: lost")
        assert bad.stats.num_rounds == 0
        assert good.wait().ids == said(PROMPT, 30)


def test_a_failing_verify_ends_the_requests_of_its_round() -> None:
    def explode(items: Any) -> None:
        if len(items) == 2:
            raise EngineError("kernel: lost")

    with engine_rig("mixed") as rig:
        rig.target.before_verify = explode
        running = [rig.submit(PROMPT[n:], max_new_tokens=30, ignore_eos=True) for n in range(2)]
        assert [r.wait().finish.message for r in running] == ["kernel: lost"] * 2
        assert rig.engine.counters()["engine_failures"] == 0
        assert rig.run(PROMPT, max_new_tokens=30, ignore_eos=True).ids == said(PROMPT, 30)


def test_an_unexpected_failure_is_counted_and_serving_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_rig("mixed") as rig:
        real = rig.engine._scheduler.admit

        def explode(parts: Any) -> None:
            raise RuntimeError("impossible")

        monkeypatch.setattr(rig.engine._scheduler, "admit", explode)
        result = rig.run(PROMPT)
        assert (result.finish.kind, result.finish.message) == ("error", "RuntimeError: impossible")
        assert rig.engine.counters()["engine_failures"] == 1
        monkeypatch.setattr(rig.engine._scheduler, "admit", real)
        assert rig.run(PROMPT, max_new_tokens=5).ids == said(PROMPT, 5)


def test_a_session_that_does_not_close_fails_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_rig("mixed") as rig:
        real = rig.drafter.open

        def open_broken(*args: Any) -> Any:
            session = real(*args)
            close = session.close

            def broken() -> None:
                close()
                raise RuntimeError("stuck")

            session.close = broken
            return session

        monkeypatch.setattr(rig.drafter, "open", open_broken)
        assert rig.run(PROMPT, max_new_tokens=4).finish.message == "RuntimeError: stuck"
        monkeypatch.setattr(rig.drafter, "open", real)
        assert rig.run(PROMPT, max_new_tokens=4).ids == said(PROMPT, 4)


def test_a_callback_that_raises_aborts_its_request() -> None:
    with engine_rig("wrong") as rig:
        calls: list[StepEvent] = []

        def on_event(event: StepEvent) -> None:
            calls.append(event)
            raise OSError("client gone")

        rig.engine.submit(GenerateRequest(request_id="x", input_ids=PROMPT), on_event)
        assert rig.run(PROMPT, max_new_tokens=5, ignore_eos=True).ids == said(PROMPT, 5)
        deadline = time.monotonic() + 10
        while calls[-1].finish is None and time.monotonic() < deadline:
            time.sleep(0.005)
        assert calls[-1].finish is not None
        assert calls[-1].finish.kind == "abort"


def test_R17_the_tree_switches_on_an_idle_engine_within_what_it_was_started_for() -> None:
    with engine_rig("mixed", max_width=4, max_budget=32) as rig:
        expected = said(PROMPT, 40)
        for tree in (PLAIN, LINEAR, WIDE, TreeConfig(rule="top2gap", width=4, budget=32), TreeConfig(width=2)):
            resolved = rig.engine.set_tree(tree)
            assert resolved.budget == tree.resolve_budget(5)
            assert rig.engine.info()["tree"] == resolved.to_mapping()
            rig.engine.flush_cache()
            assert rig.run(PROMPT, max_new_tokens=40, ignore_eos=True).ids == expected
        with pytest.raises(ConfigError, match=r"tree.width: 5"):
            rig.engine.set_tree(TreeConfig(width=5, budget=8))
        with pytest.raises(ConfigError, match=r"tree.budget: 33"):
            rig.engine.set_tree(TreeConfig(width=4, budget=33))


def test_switching_and_flushing_need_an_idle_engine() -> None:
    with engine_rig("wrong") as rig:
        rig.target.before_verify = lambda items: time.sleep(0.001)
        running = rig.submit(PROMPT, max_new_tokens=200, ignore_eos=True)
        with pytest.raises(BusyError, match="1 requests"):
            rig.engine.flush_cache()
        with pytest.raises(BusyError):
            rig.engine.set_tree(LINEAR)
        assert rig.engine.counters()["running"] == 1
        rig.engine.abort("")
        running.wait()
        rig.engine.flush_cache()


def test_who_hears_the_end_finds_the_engine_idle() -> None:
    with engine_rig("right") as rig:
        seen: list[float] = []
        done = threading.Event()

        def on_event(event: StepEvent) -> None:
            if event.finish is not None:
                rig.engine.flush_cache()  # from the engine's own thread, too
                seen.append(rig.engine.counters()["pages_free"])
                done.set()

        rig.engine.submit(GenerateRequest(request_id="x", input_ids=PROMPT), on_event)
        assert done.wait(10)
        assert seen == [rig.pool.num_pages]


def test_close_aborts_what_runs_and_refuses_what_comes() -> None:
    with engine_rig("wrong", max_running=1) as rig:
        rig.target.before_verify = lambda items: time.sleep(0.002)
        running = [rig.submit(PROMPT, max_new_tokens=200, ignore_eos=True) for _ in range(3)]
        rig.engine.close()
        assert [r.wait().finish.kind for r in running] == ["abort"] * 3
        with pytest.raises(EngineError, match="closed"):
            rig.submit(PROMPT)
        with pytest.raises(EngineError, match="closed"):
            rig.engine.flush_cache()
        rig.engine.close()


def test_many_threads_submit_at_once() -> None:
    with engine_rig("mixed", max_running=4) as rig:
        results: dict[int, Collected] = {}

        def work(number: int) -> None:
            results[number] = rig.submit((3 + number, 4), request_id=f"t{number}", max_new_tokens=12, ignore_eos=True)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, result in results.items():
            assert result.wait().ids == said((3 + number, 4), 12)


def test_counters_add_up_over_requests() -> None:
    with engine_rig("mixed") as rig:
        results = [rig.run((*PROMPT, n), max_new_tokens=9 + n, ignore_eos=True) for n in range(4)]
        counters = rig.engine.counters()
        assert counters["requests_finished"] == 4
        assert counters["emitted_tokens"] == sum(len(r.ids) for r in results)
        assert counters["rounds"] == sum(r.stats.num_rounds for r in results)
        assert counters["proposed_drafts"] == sum(r.stats.num_proposed_drafts for r in results)
        assert 0 < counters["correct_drafts"] == sum(r.stats.num_correct_drafts for r in results)
        assert counters["prompt_tokens"] == 4 * 18
        assert counters["cached_tokens"] == sum(r.stats.num_cached_tokens for r in results) == 3 * 17
        assert counters["eager_rounds"] == counters["rounds"] - 4
        rig.engine.reset_counters()
        assert rig.engine.counters()["rounds"] == 0
