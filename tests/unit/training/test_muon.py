"""Muon's updates are orthogonal and the AdamW part is PyTorch's."""

import pytest
import torch

from jetspec_engine.training.optimizer import Optimizer, orthogonalise


@pytest.mark.parametrize("size", [(3, 12, 20), (2, 20, 12), (1, 16, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(size: tuple[int, int, int]) -> None:
    x = torch.randn(*size, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(x))
    assert (values > 0.5).all()
    assert (values < 1.3).all()


def test_without_muon_it_is_adamw() -> None:
    torch.manual_seed(0)
    ours = {"w": torch.randn(4, 5).requires_grad_(), "n": torch.randn(5).requires_grad_()}
    theirs = {k: v.detach().clone().requires_grad_() for k, v in ours.items()}
    mine = Optimizer(ours, use_muon=False, weight_decay=0.1)
    reference = torch.optim.AdamW(
        [{"params": [theirs["w"]], "weight_decay": 0.1}, {"params": [theirs["n"]], "weight_decay": 0.0}],
        lr=0.01, betas=(0.9, 0.95), eps=1e-8,
    )  # fmt: skip
    for i in range(5):
        for p in (ours, theirs):
            ((p["w"] * p["n"] - i) ** 2).sum().backward()
        mine.step({name: p.grad for name, p in ours.items()}, torch.tensor(0.01), torch.tensor(99.0))
        reference.step()
        for p in (*ours.values(), *theirs.values()):
            p.grad = None
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])
