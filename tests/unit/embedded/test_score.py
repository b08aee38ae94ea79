"""Logprobs, ties and teacher forcing."""

import time

import numpy as np
import pytest
import torch

from jetspec_engine.embedded.score import score_tokens, token_logprobs, top_tokens
from jetspec_engine.errors import BusyError, EngineError, RequestError
from jetspec_engine.protocol import SlotRegion
from support.engine_runs import engine_rig, said
from support.fake_target import VOCAB_SIZE, FakeTarget, logits_of, state_of

PROMPT = tuple(range(3, 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_case_15_top_tokens_order_ties_by_lower_id(dtype: torch.dtype) -> None:
    rows = torch.randint(0, 5, (20, 300), generator=torch.Generator().manual_seed(0)).to(dtype)
    for count in (0, 1, 3, 64, 300):
        expected = [sorted(range(300), key=lambda i, row=row: (-row[i], i))[:count] for row in rows.tolist()]
        assert top_tokens(rows, count) == expected


def test_token_logprobs_are_normalised_in_float32() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.bfloat16)
    (entry,) = token_logprobs(logits, [1], 2)
    total = float(np.log(np.exp([0.0, 1.0, 2.0]).sum()))
    assert entry.logprob == pytest.approx(1.0 - total, abs=1e-6)
    assert entry.top == (
        (2, pytest.approx(2.0 - total, abs=1e-6)),
        (1, pytest.approx(1.0 - total, abs=1e-6)),
    )


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("start", [1, 2, 7, 8, 15, 16])
def test_R52_scores_are_the_targets_own_whatever_the_chunks(start: int, chunk: int) -> None:
    target = FakeTarget()
    scores = score_tokens(target, SlotRegion(start=32, capacity=17), PROMPT, start, 4, chunk=chunk)
    assert [score.position for score in scores] == list(range(start, len(PROMPT)))
    for score in scores:
        logits = logits_of(state_of(PROMPT[: score.position]))
        best = sorted(range(VOCAB_SIZE), key=lambda i, row=logits: (-row[i], i))[:4]
        assert score.token_id == PROMPT[score.position]
        assert score.logit == logits[score.token_id]
        assert [(i, logit) for i, logit, _ in score.top] == [(i, logits[i]) for i in best]


def test_R52_every_emitted_token_scores_first() -> None:
    with engine_rig("mixed") as rig:
        ids = (*PROMPT, *rig.run(PROMPT, max_new_tokens=50, ignore_eos=True).ids)
        scores = rig.engine.score(ids, len(PROMPT), 1)
        assert [score.top[0][0] for score in scores] == list(ids[len(PROMPT) :])
        wrong = [*ids[:30], (ids[30] + 1) % VOCAB_SIZE, *ids[31:]]
        assert rig.engine.score(wrong, 30, 1)[0].top[0][0] != wrong[30]
        assert rig.run(PROMPT, max_new_tokens=20, ignore_eos=True).ids == said(PROMPT, 20)


@pytest.mark.parametrize(
    ("ids", "start", "top_k", "message"),
    [
        ((), 1, 1, "input_ids: empty"),
        ((3,), 1, 1, "start: 1, expected 1..0"),
        ((3, 4), 0, 1, "start: 0"),
        ((3, 4), 2, 1, "start: 2"),
        ((3, 99), 1, 1, r"input_ids\[1\]: 99"),
        ((3, 4), 1, 41, "top_k: 41"),
        ((3,) * 257, 1, 1, "257 tokens, expected at most 256"),
    ],
)
def test_a_bad_score_request_is_refused(ids: tuple[int, ...], start: int, top_k: int, message: str) -> None:
    with engine_rig() as rig, pytest.raises(RequestError, match=message):
        rig.engine.score(ids, start, top_k)


def test_scoring_fills_the_context_and_returns_its_memory() -> None:
    with engine_rig() as rig:
        assert len(rig.engine.score((3,) * 256, 1, 0)) == 255
        assert rig.pool.num_free_pages == rig.pool.num_pages


def test_scoring_beside_running_requests_waits_for_a_round_or_says_busy() -> None:
    with engine_rig("wrong", num_slots=128, max_seq_len=96) as rig:
        rig.target.before_verify = lambda items: time.sleep(0.001)
        running = rig.submit(PROMPT, max_new_tokens=60, ignore_eos=True)
        while not rig.engine.counters()["running"]:
            time.sleep(0.001)
        with pytest.raises(BusyError, match="score: no room for 90 slots"):
            rig.engine.score((3,) * 90, 1, 0)
        assert len(rig.engine.score((3,) * 10, 1, 0)) == 9
        assert running.wait().ids == said(PROMPT, 60)


def test_R39_logits_that_are_not_finite_are_an_error() -> None:
    target = FakeTarget()
    target.is_poisoned = lambda first_id, position: position == 9
    with pytest.raises(EngineError, match="position 10"):
        score_tokens(target, SlotRegion(start=0, capacity=17), PROMPT, 1, 4, chunk=5)
