"""Recordings of the real engine: what is replayed from them is what the engine does live, round for round."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.errors import BusyError, ConfigError, RequestError
from jetspec_engine.protocol import Candidates
from jetspec_engine.records import GenerateRequest, Recording, RequestStats, SamplingParams
from jetspec_engine.tree.replay import replay
from support.engine_runs import Rig, engine_rig, said
from support.fake_target import FakeDrafter
from support.tiny_pairs import assembled_rig, favour, make_tiny_pair

PROMPT = [5, 9, 7, 30, 8]
TREES = (
    LINEAR,
    *(
        TreeConfig(width=width, budget=budget, rule=rule, keep_spine=spine)
        for width, budget, rule, spine in itertools.product(
            (2, 4), (5, 12, None), ("best_first", "accum_logp", "top2gap"), (False, True)
        )
    ),
    *(TreeConfig(rule="top2gap", width=4, budget=12, beta=beta, g0=g0) for beta, g0 in ((0.5, 0.5), (2, 0.5), (2, 2))),
)


class NestedDrafter(FakeDrafter):
    """Offers the best of the same candidates at every width, as a head does."""

    def propose(self, sessions: Sequence[Any], anchors: Sequence[int], width: int) -> list[Candidates]:
        offers = super().propose(sessions, anchors, 4)
        return [Candidates(tokens=o.tokens[:, :width], logprobs=o.logprobs[:, :width]) for o in offers]


def record(rig: Rig, ids: list[int], width: int = 4, **sampling: object) -> Recording:
    request = GenerateRequest(request_id="rec", input_ids=tuple(ids), sampling=SamplingParams(**sampling))
    return rig.engine.record(request, width)


def replayed_stats(made: Recording, tree: TreeConfig) -> tuple[int, int, int, list[int]]:
    """Return rounds, proposed and correct drafts, and the histogram, the prefill's round included."""
    rounds = replay(made, tree)
    emitted = [1, *(one.num_emitted for one in rounds)]
    histogram = [emitted.count(size) for size in range(max(emitted) + 1)]
    proposed = sum(one.num_nodes - 1 for one in rounds)
    return len(emitted), proposed, sum(one.num_correct for one in rounds), histogram


def live_stats(stats: RequestStats) -> tuple[int, int, int, list[int]]:
    histogram = list(stats.accept_histogram)
    while not histogram[-1]:
        histogram.pop()
    return stats.num_rounds, stats.num_proposed_drafts, stats.num_correct_drafts, histogram


@pytest.mark.parametrize("mode", ["mixed", "right", "wrong"])
@pytest.mark.parametrize("cap", [1, 2, 7, 60])
def test_R03_replayed_rounds_equal_live_ones_with_doubles(mode, cap):
    with engine_rig(drafter=NestedDrafter(mode, depth=5)) as rig:
        made = record(rig, PROMPT, max_new_tokens=cap)
        assert list(made.token_ids) == said(PROMPT, cap)[: len(made.token_ids)]
        for tree in TREES:
            rig.engine.set_tree(tree)
            live = rig.run(PROMPT, max_new_tokens=cap)
            assert tuple(live.ids) == made.token_ids
            assert replayed_stats(made, tree) == live_stats(live.stats), tree


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_R03_replayed_rounds_equal_live_ones_with_a_real_head(tmp_path, dtype):
    pair = make_tiny_pair(tmp_path)
    favour(tmp_path / "target", range(40, 46))
    lengths = set()
    with assembled_rig(pair, dtype=dtype) as rig:
        prompts = ([5, 6, 7, 5, 6, 7], list(range(3, 60)))
        recordings = [record(rig, ids, width=4, max_new_tokens=40) for ids in prompts]
        for tree in (LINEAR, *TREES[5:24:4], TREES[-1]):
            rig.engine.set_tree(tree)
            for ids, made in zip(prompts, recordings, strict=True):
                live = rig.run(ids, max_new_tokens=40)
                assert tuple(live.ids) == made.token_ids
                assert replayed_stats(made, tree) == live_stats(live.stats), tree
                lengths.add(live.stats.accept_length)
    assert len(lengths) > 4, "too little was accepted to tell settings apart"


def test_a_recording_near_the_end_of_the_context_is_cut_as_the_answer_is():
    with engine_rig(drafter=NestedDrafter(depth=5), max_seq_len=32) as rig:
        prompt = [3 + i % 20 for i in range(25)]
        made = record(rig, prompt, max_new_tokens=64)
        assert made.cap == 7
        tree = TreeConfig(width=4, budget=12)
        rig.engine.set_tree(tree)
        assert replayed_stats(made, tree) == live_stats(rig.run(prompt, max_new_tokens=64).stats)


def test_what_cannot_be_recorded_is_refused_and_leaves_nothing_behind():
    with engine_rig(max_width=4) as rig:
        with pytest.raises(ConfigError, match=r"tree.width: 5"):
            record(rig, PROMPT, width=5)
        with pytest.raises(RequestError, match="empty"):
            record(rig, [])
        release = threading.Event()
        rig.drafter.before_propose = lambda: release.wait(20)
        busy = rig.submit(PROMPT, max_new_tokens=20, ignore_eos=True)
        asked = threading.Timer(0.2, release.set)
        asked.start()
        with pytest.raises(BusyError, match="record: 1 requests"):
            record(rig, PROMPT, max_new_tokens=1)
        busy.wait()


def test_an_engine_that_fails_while_recording_says_so_and_goes_on():
    with engine_rig() as rig:
        verify = rig.target.verify
        rig.target.verify = lambda items: (_ for _ in ()).throw(RuntimeError("lost"))
        with pytest.raises(Exception, match="lost"):
            record(rig, PROMPT, max_new_tokens=8)
        rig.target.verify = verify
        assert rig.run(PROMPT, max_new_tokens=5).ids == said(PROMPT, 5)
