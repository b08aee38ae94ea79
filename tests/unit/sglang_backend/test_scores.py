"""Logits at a prompt's end: values, order among equals, and the asked token."""

import pytest

torch = pytest.importorskip("torch")

from jetspec_engine.sglang_backend.scores import MOST_TOP, scores_of  # noqa: E402


def test_the_likeliest_come_first_and_equals_by_id():
    logits = torch.zeros(2, 200, dtype=torch.bfloat16)
    logits[0, 7], logits[0, 150], logits[0, 20] = 3.0, 5.0, 5.0
    logits[1] = torch.arange(200)
    first, second = scores_of(logits, 3)
    assert [entry[0] for entry in first["top"][:3]] == [20, 150, 7]
    assert first["token"][:2] == (3, 0.0)
    assert len(first["top"]) == MOST_TOP
    assert second["top"][0][0] == 199
    expected = logits[1].float().log_softmax(-1)
    assert second["token"][2] == pytest.approx(float(expected[3]))


def test_a_small_vocabulary_has_fewer():
    assert len(scores_of(torch.zeros(1, 4), 0)[0]["top"]) == 4
