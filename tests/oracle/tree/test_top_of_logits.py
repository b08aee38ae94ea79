"""Argmax and top-W of logits against a stable sort of each row: same ids, ties to the lower one, odd rows defined."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.tree.accept import NON_FINITE, greedy_ids
from jetspec_engine.tree.blocks import BLOCK
from jetspec_engine.tree.candidates import chain_candidates, top_candidates
from jetspec_engine.tree.reference import greedy_reference, top_reference

VOCABULARIES = (1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 1000)
ODD = (math.nan, math.inf, -math.inf, -0.0, 3e38, -3e38)


@st.composite
def logit_rows(draw):
    """A few rows over vocabularies around the block size; few distinct values, so ties are everywhere."""
    vocabulary = draw(st.sampled_from(VOCABULARIES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    levels = draw(st.sampled_from((1, 2, 5, 1000)))
    logits = torch.randint(-levels, levels, (3, vocabulary), generator=generator).float() / 4
    if draw(st.booleans()):
        logits[draw(st.integers(0, 2))] = -math.inf
    for _ in range(draw(st.integers(0, 4))):
        row, column = draw(st.integers(0, 2)), draw(st.integers(0, vocabulary - 1))
        logits[row, column] = draw(st.sampled_from(ODD))
    return logits.to(draw(st.sampled_from((torch.float32, torch.bfloat16))))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(logit_rows())
def test_case_15_greedy_ids_equal_reference(logits):
    assert greedy_ids(logits).tolist() == [greedy_reference(row) for row in logits.tolist()]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(logit_rows(), st.sampled_from((1, 2, 8, 64)))
def test_case_15_top_candidates_equal_reference(logits, width):
    before = logits.clone()
    candidates = top_candidates(logits, width)
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    assert candidates.tokens.dtype == torch.int64
    assert candidates.logprobs.dtype == torch.float32
    for depth, row in enumerate(logits.tolist()):
        tokens, logprobs = zip(*top_reference(row, width), strict=True)
        assert candidates.tokens[depth].tolist() == list(tokens)
        assert candidates.logprobs[depth].tolist() == pytest.approx(logprobs, rel=1e-5, abs=1e-5)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(logit_rows())
def test_R11_chain_candidates_are_the_first_of_top_candidates(logits):
    chain, top = chain_candidates(logits), top_candidates(logits, 1)
    assert chain.tokens.tolist() == top.tokens.tolist()
    assert (chain.logprobs == -math.inf).tolist() == (top.logprobs == -math.inf).tolist()
    assert set(chain.logprobs.flatten().tolist()) <= {0.0, -math.inf}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("seed", range(3))
def test_case_15_ties_at_full_vocabulary(dtype, seed):
    """As the demo pair has it: 49152 tokens, bf16 values, the same value in many columns at the very top."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(15, 49152, generator=generator) * 3).to(dtype)
    columns = torch.randint(0, 49152, (15, 20), generator=generator)
    logits.scatter_(1, columns, 20.0)
    order = logits.float().sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(greedy_ids(logits), order[:, 0])
    assert torch.equal(top_candidates(logits, 8).tokens, order[:, :8])
    assert torch.equal(top_candidates(logits, 64).tokens, order[:, :64])
    assert torch.equal(chain_candidates(logits).tokens, order[:, :1])
    expected = logits.double().log_softmax(dim=1).gather(1, order[:, :8])
    torch.testing.assert_close(top_candidates(logits, 8).logprobs.double(), expected, rtol=0, atol=5e-6)


def test_case_14_bad_target_rows_are_marked_and_others_unharmed():
    logits = torch.zeros(4, 300)
    logits[0, 5] = math.nan
    logits[1, 5] = math.inf
    logits[2] = -math.inf
    logits[3, 7], logits[3, 8] = 1.0, -math.inf
    assert greedy_ids(logits).tolist() == [NON_FINITE, NON_FINITE, NON_FINITE, 7]


def test_case_14_bad_draft_rows_offer_nothing():
    logits = torch.randn(4, 300)
    logits[0, 5] = math.nan
    logits[1, 5] = math.inf
    logits[2] = -math.inf
    candidates = top_candidates(logits, 8)
    assert (candidates.logprobs[:3] == -math.inf).all()
    assert (candidates.tokens[:3] == 0).all()
    assert torch.isfinite(candidates.logprobs[3]).all()
