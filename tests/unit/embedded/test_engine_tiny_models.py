"""The engine over real (tiny, random) models: the context limit, batches, prefixes and aborts with true state."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.errors import RequestError
from support.devices import DEVICES
from support.engine_runs import Rig
from support.tiny_pairs import CONTEXT, assembled_rig, make_tiny_pair

WIDE = TreeConfig(width=4, budget=16)
TREES = (PLAIN, LINEAR, WIDE)
PROMPT = tuple(range(10, 40))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def rig(pair: dict[str, str], device: str, request: pytest.FixtureRequest) -> Iterator[Rig]:
    with assembled_rig(pair, device=device, dtype=request.param, max_running=3) as rig:
        yield rig


def fresh(rig: Rig, tree: TreeConfig) -> Rig:
    rig.engine.set_tree(tree)
    rig.engine.flush_cache()
    return rig


@pytest.mark.parametrize("missing", [2, 1, 7, 16, 0, -1])
def test_case_18_prompts_near_the_context_limit(rig: Rig, missing: int) -> None:
    prompt = tuple(10 + i * 7 % 300 for i in range(CONTEXT - missing))
    texts = []
    for tree in TREES:
        fresh(rig, tree)
        if missing <= 0:
            with pytest.raises(RequestError, match=f"{CONTEXT - missing} tokens, expected at most {CONTEXT - 1}"):
                rig.submit(prompt)
            continue
        neighbour = rig.submit(PROMPT, max_new_tokens=30, ignore_eos=True)
        texts.append((rig.run(prompt, max_new_tokens=50, ignore_eos=True).ids, neighbour.wait().ids))
        assert len(texts[-1][0]) == missing
        assert texts[-1] == texts[0]


@pytest.mark.parametrize("tree", TREES)
def test_case_13_ragged_requests_together_equal_their_solo_texts(rig: Rig, tree: TreeConfig) -> None:
    prompts = [tuple(10 + (n * 31 + i) % 300 for i in range(n)) for n in (1, 5, 16, 17, 40, 90)]
    alone = []
    for prompt in prompts:
        alone.append(fresh(rig, tree).run(prompt, max_new_tokens=25, ignore_eos=True))
    fresh(rig, tree)
    together = [rig.submit(prompt, max_new_tokens=25, ignore_eos=True) for prompt in prompts]
    for solo, result in zip(alone, together, strict=True):
        assert result.wait().ids == solo.ids
        assert result.stats.accept_histogram == solo.stats.accept_histogram


@pytest.mark.parametrize("tree", [LINEAR, WIDE])
def test_case_21_a_prefix_hit_keeps_text_and_accept_length(rig: Rig, tree: TreeConfig) -> None:
    cold = fresh(rig, tree).run(PROMPT, max_new_tokens=30, ignore_eos=True)
    warm = rig.run(PROMPT, max_new_tokens=30, ignore_eos=True)
    assert warm.stats.num_cached_tokens == len(PROMPT) - 1
    assert (warm.ids, warm.stats.accept_histogram) == (cold.ids, cold.stats.accept_histogram)
    longer = (*PROMPT, *cold.ids, 50, 51)
    continued = rig.run(longer, max_new_tokens=20, ignore_eos=True)
    assert continued.stats.num_cached_tokens >= len(longer) - 3
    again = fresh(rig, tree).run(longer, max_new_tokens=20, ignore_eos=True)
    assert (continued.ids, continued.stats.accept_histogram) == (again.ids, again.stats.accept_histogram)


def test_case_11_25_aborts_leave_texts_right_and_pages_whole(rig: Rig) -> None:
    fresh(rig, WIDE)
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(5, 320) for _ in range(rng.randrange(1, 30))) for _ in range(8)]
    expected = {prompt: rig.run(prompt, max_new_tokens=20, ignore_eos=True).ids for prompt in prompts}
    running = []
    for number in range(100):
        prompt = rng.choice(prompts)
        running.append((prompt, rig.submit(prompt, request_id=f"x{number}", max_new_tokens=20, ignore_eos=True)))
        if number % 3 == 0:
            rig.engine.abort(f"x{rng.randrange(number + 1)}")
    for prompt, result in running:
        ids = result.wait().ids
        assert ids == expected[prompt][: len(ids)]
        assert result.finish.kind in ("length", "abort")
    rig.engine.flush_cache()
    assert rig.engine.counters()["pages_free"] == rig.engine.counters()["pages_total"]


@pytest.mark.parametrize("tree", [TreeConfig(width=3, budget=40), TreeConfig(width=3, budget=40, rule="accum_logp")])
def test_case_08_deep_paths_of_last_children_over_real_state(
    pair: dict[str, str], device: str, tree: TreeConfig
) -> None:
    pair = {**pair, "device": device}
    with assembled_rig(pair, dtype="float32", tree=PLAIN) as rig:
        expected = rig.run(PROMPT, max_new_tokens=50, ignore_eos=True).ids
    options: dict[str, Any] = {
        "recordings": [{"prompt_ids": PROMPT, "continuation_ids": expected}],
        "rank": 2,
        "is_comb": True,
        "depth": 9,
    }
    with assembled_rig(pair, dtype="float32", drafter="replay", drafter_options=options, tree=tree) as rig:
        result = rig.run(PROMPT, max_new_tokens=50, ignore_eos=True)
        assert result.ids == expected
        assert result.stats.accept_length > 8
        # The committed state is that of the text: decoding on from it without drafts gives the same text again.
        more = rig.run((*PROMPT, *expected), max_new_tokens=30, ignore_eos=True)
        assert more.stats.num_cached_tokens >= len(PROMPT) + len(expected) - 1
    with assembled_rig(pair, dtype="float32", tree=PLAIN) as rig:
        assert rig.run((*PROMPT, *expected), max_new_tokens=30, ignore_eos=True).ids == more.ids


@pytest.mark.parametrize("tree", [LINEAR, WIDE])
def test_case_12_always_wrong_and_always_right_over_real_state(
    pair: dict[str, str], device: str, tree: TreeConfig
) -> None:
    cap = {"max_new_tokens": 80, "ignore_eos": True}
    with assembled_rig(pair, device=device, dtype="bfloat16", tree=PLAIN) as rig:
        expected = rig.run(PROMPT, **cap).ids
    options = {"recordings": [{"prompt_ids": PROMPT, "continuation_ids": expected}]}
    found = {}
    for drafter in ("wrong", "right"):
        config = {"drafter": drafter, "drafter_options": options, "dtype": "bfloat16", "tree": tree}
        with assembled_rig(pair, device=device, **config) as rig:
            result = rig.run(PROMPT, **cap)
        assert result.ids == expected
        found[drafter] = result.stats
    assert (found["wrong"].num_rounds, found["wrong"].num_correct_drafts) == (80, 0)
    assert found["right"].accept_length > 10


def test_many_threads_over_real_models(rig: Rig) -> None:
    solo = fresh(rig, WIDE).run(PROMPT, max_new_tokens=15, ignore_eos=True).ids
    texts = []

    def work() -> None:
        for _ in range(3):
            texts.append(rig.run(PROMPT, request_id=str(random.random()), max_new_tokens=15, ignore_eos=True).ids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [solo] * 12
