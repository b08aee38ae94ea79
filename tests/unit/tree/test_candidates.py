"""Candidates by hand. Their equality with a stable sort is in tests/oracle/tree."""

import math

import pytest
import torch

from jetspec_engine.errors import ConfigError
from jetspec_engine.tree.candidates import chain_candidates, top_candidates


def test_log_probabilities_are_those_of_a_softmax():
    candidates = top_candidates(torch.tensor([[0.0, math.log(2.0), math.log(5.0)]]), 2)
    assert candidates.tokens.tolist() == [[2, 1]]
    assert candidates.logprobs[0].tolist() == pytest.approx([math.log(5 / 8), math.log(2 / 8)], abs=1e-6)


def test_case_15_equal_logits_go_by_id_and_minus_zero_equals_zero():
    assert top_candidates(torch.tensor([[-0.0, 0.0, -0.0, 1.0]]), 4).tokens.tolist() == [[3, 0, 1, 2]]
    assert chain_candidates(torch.tensor([[-0.0, 0.0]])).tokens.tolist() == [[0]]


def test_a_masked_token_is_no_candidate():
    candidates = top_candidates(torch.tensor([[1.0, -math.inf, 0.0]]), 3)
    assert candidates.tokens.tolist() == [[0, 2, 0]]
    assert candidates.logprobs[0, 2] == -math.inf


@pytest.mark.parametrize("width", [0, -1, 65, True, 2.0])
def test_a_width_out_of_range_is_refused(width):
    with pytest.raises(ConfigError, match="width"):
        top_candidates(torch.zeros(1, 100), width)
