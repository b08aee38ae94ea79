"""Forward KL of many rows of logits against the target's, with its gradient written over the draft's logits.

Row i of the draft is compared with row ``index[i]`` of the target: many anchors share one target position, whose
logits are computed once. Each function has a Triton kernel and a plain twin that defines the result.
"""

import torch
from torch import Tensor

from jetspec_engine.training.kernels.triton_or_none import has_triton_for, jit, tl


@jit
def _stats_kernel(LOGITS, LSE, TOP, scale, V, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    row = tl.program_id(0)
    base = row.to(tl.int64) * V
    best = tl.full((), -1e30, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    choice = tl.full((), 0, tl.int32)
    for start in range(0, V, TILE):
        j = start + tl.arange(0, TILE)
        x = tl.load(LOGITS + base + j, mask=j < V, other=-1e30).to(tl.float32) * scale
        top = tl.max(x, 0)
        choice = tl.where(top > best, start + tl.argmax(x, 0), choice)
        new_best = tl.maximum(best, top)
        total = total * tl.exp(best - new_best) + tl.sum(tl.exp(x - new_best), 0)
        best = new_best
    tl.store(LSE + row, best + tl.log(total))
    tl.store(TOP + row, choice.to(tl.int64))


@jit
def _divergence_kernel(DRAFT, DRAFT_LSE, TARGET, TARGET_LSE, INDEX, WEIGHT, KL, scale, V, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    row = tl.program_id(0)
    base = row.to(tl.int64) * V
    other = tl.load(INDEX + row)
    weight = tl.load(WEIGHT + row)
    draft_lse = tl.load(DRAFT_LSE + row)
    target_lse = tl.load(TARGET_LSE + other)
    kl = tl.full((), 0.0, tl.float32)
    for start in range(0, V, TILE):
        j = start + tl.arange(0, TILE)
        is_in = j < V
        d = tl.load(DRAFT + base + j, mask=is_in, other=-1e30).to(tl.float32) - draft_lse
        t = tl.load(TARGET + other * V + j, mask=is_in, other=-1e30).to(tl.float32) * scale - target_lse
        p = tl.exp(t)
        kl += tl.sum(tl.where(is_in, p * (t - d), 0.0), 0)
        tl.store(DRAFT + base + j, ((tl.exp(d) - p) * weight).to(DRAFT.dtype.element_ty), mask=is_in)
    tl.store(KL + row, kl)


def row_stats(logits: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return log-sum-exp of ``logits * scale`` (rows,) float32 and the likeliest ids (rows,) int64."""
    rows, vocab = logits.shape
    if has_triton_for(logits):
        lse = torch.empty(rows, device=logits.device, dtype=torch.float32)
        top = torch.empty(rows, device=logits.device, dtype=torch.int64)
        _stats_kernel[(rows,)](logits, lse, top, scale, vocab, TILE=4096, num_warps=8)
        return lse, top
    return torch.logsumexp(logits.float() * scale, -1), logits.argmax(-1)


def divergence_with_gradient_(
    draft: Tensor, target: Tensor, index: Tensor, *, draft_lse: Tensor, target_lse: Tensor, weight: Tensor, scale: float
) -> Tensor:
    """Return KL(target || draft) of each row, (rows,) float32 nats, and overwrite ``draft`` with its gradient.

    Args:
        draft: (rows, V) logits, replaced by weight * (softmax(draft) - softmax(target * scale)).
        target: (positions, V) logits. index: (rows,) int64 into positions.
        draft_lse, target_lse: from ``row_stats``, the target's with the same scale. weight: (rows,) float32.
        scale: 1 / the teacher's temperature.
    """
    rows, vocab = draft.shape
    if has_triton_for(draft, target):
        kl = torch.empty(rows, device=draft.device, dtype=torch.float32)
        _divergence_kernel[(rows,)](
            draft, draft_lse, target, target_lse, index, weight, kl, scale, vocab, TILE=4096, num_warps=8
        )
        return kl
    log_d = draft.float() - draft_lse[:, None]
    log_t = target[index].float() * scale - target_lse[index][:, None]
    p = log_t.exp()
    draft.copy_((log_d.exp() - p) * weight[:, None])
    return (p * (log_t - log_d)).sum(-1)
