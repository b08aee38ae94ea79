"""The bridge between the engine's thread and asyncio, without HTTP."""

import asyncio

import pytest

from jetspec_engine.errors import BusyError, EngineError, RequestError
from jetspec_engine.records import GenerateRequest, SamplingParams
from jetspec_engine.server.bridge import EngineBridge
from support.fake_engine import FakeEngine


def request(name: str, cap: int = 6) -> GenerateRequest:
    return GenerateRequest(request_id=name, input_ids=(104, 105), sampling=SamplingParams(max_new_tokens=cap))


def test_events_stay_one_a_round_for_a_slow_reader() -> None:
    async def read() -> list[int]:
        generation = EngineBridge(engine).start([request("a", 300)])
        while engine.counters()["running"]:
            await asyncio.sleep(0.002)
        return [len(event.token_ids) async for _, event in generation.events()]

    engine = FakeEngine(tokens_per_round=3)
    assert asyncio.run(read()) == [3] * 100
    engine.close()


def test_requests_of_one_generation_keep_their_places() -> None:
    async def read() -> dict[int, list[int]]:
        generation = EngineBridge(engine).start([request("a", 5), request("b", 9), request("c", 0)])
        tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async for index, event in generation.events():
            tokens[index] += event.token_ids
        return tokens

    engine = FakeEngine()
    assert [len(tokens) for tokens in asyncio.run(read()).values()] == [5, 9, 0]
    engine.close()


def test_a_refused_duplicate_does_not_abort_the_original() -> None:
    async def run() -> tuple[str, dict[str, str]]:
        bridge = EngineBridge(engine)
        engine.hold.clear()
        first = bridge.start([request("a")])
        with pytest.raises(RequestError, match="already running"):
            bridge.start([request("b"), request("a")])
        engine.hold.set()
        kinds = [event.finish.kind async for _, event in first.events() if event.finish]
        while bridge.active:
            await asyncio.sleep(0.002)
        return kinds[0], bridge.active

    engine = FakeEngine()
    assert asyncio.run(run()) == ("length", {})
    assert engine.aborted_ids == ["b"]
    engine.close()


def test_all_or_none_when_the_queue_is_full() -> None:
    async def run() -> None:
        bridge = EngineBridge(engine)
        engine.hold.clear()
        with pytest.raises(BusyError):
            bridge.start([request("a"), request("b"), request("c")])
        engine.hold.set()
        while bridge.active:
            await asyncio.sleep(0.002)

    engine = FakeEngine(max_queued=2)
    asyncio.run(run())
    assert engine.counters()["requests_aborted"] == 2
    engine.close()


def test_closing_twice_aborts_once_and_not_what_has_finished() -> None:
    async def run() -> None:
        bridge = EngineBridge(engine)
        done = bridge.start([request("done")])
        async for _ in done.events():
            pass
        done.close()
        engine.hold.clear()
        gone = bridge.start([request("gone")])
        gone.close()
        gone.close()

    engine = FakeEngine()
    asyncio.run(run())
    assert engine.aborted_ids == ["gone"]
    # The loop is closed by now: the engine's last event finds nobody and hurts nobody.
    engine.close()
    assert engine.counters()["requests_aborted"] == 1


def test_an_engine_error_ends_the_generation() -> None:
    texts: list[str] = []

    async def run() -> None:
        generation = EngineBridge(engine).start([request("a", 60), request("b", 60)])
        try:
            async for _, event in generation.events():
                texts.append(event.text)
        finally:
            generation.close()

    engine = FakeEngine(fail_at=9)
    with pytest.raises(EngineError, match="not finite"):
        asyncio.run(run())
    assert texts
    engine.close()


def test_aborting_a_batch_leaves_a_request_alone_whose_id_only_looks_like_a_part() -> None:
    async def run() -> list[str]:
        bridge = EngineBridge(engine)
        engine.hold.clear()
        bridge.start([request("job_0"), request("job_1")], whole="job")
        bridge.start([request("job_2")])
        aborted = bridge.abort("job")
        engine.hold.set()
        while bridge.active:
            await asyncio.sleep(0.002)
        return sorted(aborted)

    engine = FakeEngine()
    assert asyncio.run(run()) == ["job_0", "job_1"]
    assert sorted(engine.aborted_ids) == ["job_0", "job_1"]
    engine.close()
