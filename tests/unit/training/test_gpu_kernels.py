"""On a GPU every kernel equals its plain twin, and captured steps equal eager ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from jetspec_engine.training.kernels import block_attention, decode_step, pick_token, soft_divergence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BF16 = torch.bfloat16


def _distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


@pytest.fixture
def draw() -> Callable[..., Tensor]:
    torch.manual_seed(0)
    return lambda *size: torch.randn(*size, device="cuda", dtype=BF16)


@pytest.mark.parametrize("positions", [8, 16])
def test_block_attention(draw: Callable[..., Tensor], positions: int) -> None:
    B, A, H, KV, HD, T = 4, 16, 9, 3, 64, 200
    q, kb, vb = draw(B, A, positions, H, HD), draw(B, A, positions, KV, HD), draw(B, A, positions, KV, HD)
    inputs = [x.requires_grad_() for x in (q, kb, vb, draw(B, T, KV, HD), draw(B, T, KV, HD))]
    exact = [x.detach().float().requires_grad_() for x in inputs]
    anchors = torch.randint(0, T, (B, A), device="cuda")
    anchors[0, 0] = 0
    upstream = draw(B, A, positions, H, HD)
    results = []
    for (q, kb, vb, kc, vc), run in (
        (inputs, block_attention.block_attention),
        (exact, block_attention.block_attention_plain),
    ):
        out = run(q, (kb, vb), (kc, vc), anchors)
        results.append([out, *torch.autograd.grad((out * upstream).sum(), [q, kb, vb, kc, vc])])
    assert all(_distance(a, b) < 1e-2 for a, b in zip(*results, strict=True))


def test_decode_step(draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, length, HD = 64, 300, 64
    q, k, v = torch.split(draw(rows, 15, HD), [9, 3, 3], 1)
    turns = (draw(length, 32).repeat(1, 2), draw(length, 32).repeat(1, 2))
    positions = torch.randint(0, length, (rows,), device="cuda")
    caches = [(draw(rows * 3, length, HD), draw(rows * 3, length, HD))]
    caches.append((caches[0][0].clone(), caches[0][1].clone()))
    results = []
    for keys, values in caches:
        turned = decode_step.rotate_and_store((q, k, v), turns, positions, (keys, values))
        results.append([turned, keys, values, decode_step.attend_one(turned, keys, values, positions)])
        monkeypatch.setattr(decode_step, "has_triton_for", lambda *_: False)
    assert all(_distance(a, b) < 1e-2 for a, b in zip(*results, strict=True))


def test_soft_divergence(draw: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    draft, target = 3 * draw(64, 49152), 3 * draw(20, 49152)
    index = torch.randint(0, 20, (64,), device="cuda")
    weight = torch.rand(64, device="cuda")
    results = []
    for _ in range(2):
        logits = draft.clone()
        draft_lse, top = soft_divergence.row_stats(logits)
        target_lse, _ = soft_divergence.row_stats(target, 1.4)
        kl = soft_divergence.divergence_with_gradient_(
            logits, target, index, draft_lse=draft_lse, target_lse=target_lse, weight=weight, scale=1.4
        )
        results.append([logits, kl, draft_lse, target_lse, top])
        monkeypatch.setattr(soft_divergence, "has_triton_for", lambda *_: False)
    assert all(_distance(a, b) < 1e-2 for a, b in zip(*results, strict=True))


def test_picked_tokens_follow_the_temperature() -> None:
    logits = torch.full((4000, 49152), -9.0, device="cuda")
    logits[:, 2], logits[:, 5] = 1.0, 1.0 + 0.7 * 1.0986
    seed = torch.tensor([3], device="cuda")
    drawn = pick_token.pick_token(logits, torch.full((4000,), 0.7, device="cuda"), 0.01, seed)
    assert set(drawn.tolist()) == {2, 5}
    assert float((drawn == 5).float().mean()) == pytest.approx(0.75, abs=0.03)
    assert pick_token.pick_token(logits, torch.zeros(4000, device="cuda"), 0.01, seed).unique().tolist() == [5]
