"""Routing: shares and order of a token's experts."""

import pytest
import torch

from jetspec_engine.models.expert_block import choose_experts


def test_R13_ties_go_to_the_lower_expert_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    shares, ids = choose_experts(logits, 2, is_normed=True)
    assert ids.tolist() == [[1, 2], [0, 1]]
    assert shares.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("is_normed", [False, True])
def test_shares_are_probabilities_or_scaled_to_one(is_normed: bool) -> None:
    logits = torch.randn(7, 12, generator=torch.Generator().manual_seed(1))
    shares, ids = choose_experts(logits, 4, is_normed=is_normed)
    wanted = torch.softmax(logits.double(), -1).gather(1, ids)
    wanted = wanted / wanted.sum(-1, keepdim=True) if is_normed else wanted
    torch.testing.assert_close(shares.double(), wanted, atol=1e-6, rtol=0)
    assert (shares.diff(dim=1) <= 0).all()


def test_R39_a_token_that_is_not_finite_spoils_no_other() -> None:
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(2))
    alone = choose_experts(logits[:1], 2, is_normed=True)
    logits[1] = torch.nan
    shares, ids = choose_experts(logits, 2, is_normed=True)
    assert torch.equal(shares[:1], alone[0])
    assert torch.equal(ids[:1], alone[1])
    assert ids.max() < 6
