"""The chunked KL equals plain autograd, values and gradients."""

import pytest
import torch

from jetspec_engine.training.losses import distil, distil_slowly, loss_rows, reach_weight
from jetspec_engine.training.settings import TrainSettings
from jetspec_engine.training.text_pool import TextPool


@pytest.mark.parametrize("chunk", [1, 40, 10_000])
@pytest.mark.parametrize(("temperature", "reach_floor", "decay"), [(1.0, 1.0, 0.0), (0.6, 1.0, 3.0), (1.0, 0.3, 5.0)])
def test_chunked_loss_and_gradient_equal_the_reference(
    pool: TextPool, chunk: int, temperature: float, reach_floor: float, decay: float
) -> None:
    settings = TrainSettings(chunk=chunk, teacher_temperature=temperature, reach_floor=reach_floor)
    rows = torch.tensor([3, 1, 7])
    batch = pool.batch(rows)
    anchors = pool.draw_anchors(rows, [5, 2], seed=4)
    g = torch.Generator().manual_seed(1)
    lm_head = torch.randn(61, 16, generator=g)
    last = torch.randn(*batch.tokens.shape, 16, generator=g)
    states = [torch.randn(3, n, d, 16, generator=g).requires_grad_() for n, d in ((5, 2), (2, 6))]
    targets = loss_rows(anchors, [2, 6], batch.lengths, decay)
    loss, kls, hits = distil(last, lm_head, targets, states, settings)
    grads = torch.autograd.grad(loss * 2, states)
    slow = distil_slowly(last, lm_head, targets, states, settings)
    slow_grads = torch.autograd.grad(slow * 2, states)
    torch.testing.assert_close(loss, slow)
    for ours, theirs in zip(grads, slow_grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert [k.shape for k in kls] == [h.shape for h in hits] == [(3, 5, 2), (3, 2, 6)]


def test_rows_point_at_the_state_that_predicts_each_token(pool: TextPool) -> None:
    rows = torch.tensor([0, 5])
    lengths = pool.lengths[rows]
    anchors = torch.stack([pool.answer_starts[rows], lengths - 2], 1)
    (targets,) = loss_rows([anchors], [4], lengths, 0.0)
    assert targets.position[:, 0].tolist() == [list(range(a, a + 4)) for a in anchors[:, 0].tolist()]
    assert (targets.weight[:, 1] > 0).tolist() == [[True, False, False, False]] * 2
    assert float(targets.weight.sum()) == pytest.approx(1.0)


def test_reach_weight_is_one_at_the_first_depth_and_falls_with_the_chance() -> None:
    chance = torch.tensor([[0.5, 0.5, 1.0]])
    torch.testing.assert_close(reach_weight(chance, 0.2), torch.tensor([[1.0, 0.6, 0.4]]))
    assert (reach_weight(chance, 1.0) == 1).all()
