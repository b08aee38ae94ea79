"""The distillation loss: forward KL from the target's distribution to the head's, over every drafted position.

Works in chunks of conversations, so that no (all rows, V) tensor exists; the gradient of the head's states is made
in the forward pass. Knows nothing of the head's inside.

Source: JetSpec (forward KL to the full soft distribution, uniform over depths, no loss on the anchor). The weights
by depth and by reach, and the sharpened teacher, are additions of ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.training.kernels.soft_divergence import divergence_with_gradient_, row_stats
from jetspec_engine.training.settings import TrainSettings


@dataclass(frozen=True)
class LossRows:
    """Which position's target state each drafted position of one group of blocks is compared with.

    Attributes:
        position: (B, A, d) int64 in the conversation.
        weight: (B, A, d) float32, 0 past the conversation's end; all groups' weights together sum to 1.
    """

    position: Tensor
    weight: Tensor


def loss_rows(anchors: Sequence[Tensor], depths: Sequence[int], lengths: Tensor, depth_decay: float) -> list[LossRows]:
    """Lay out the rows of each group: depth d of a block at anchor p is judged by the target's state at p + d - 1.

    Args:
        anchors: (B, A) int64 a group. depths: drafted positions of a block, a group. lengths: (B,) int64.
        depth_decay: see ``TrainSettings``.
    """
    rows = []
    last = (lengths - 2)[:, None, None]
    for anchor, depth in zip(anchors, depths, strict=True):
        d = torch.arange(depth, device=anchor.device)
        position = anchor[..., None] + d
        weight = torch.exp(-d / depth_decay) if depth_decay > 0 else torch.ones(depth, device=anchor.device)
        rows.append((torch.minimum(position, last), (position <= last) * weight))
    total = torch.stack([weight.sum() for _, weight in rows]).sum().clamp(min=1e-6)
    return [LossRows(position=position, weight=(weight / total).float()) for position, weight in rows]


def distil(
    target_states: Tensor, lm_head: Tensor, rows: list[LossRows], states: list[Tensor], settings: TrainSettings
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return the weighted loss, and per group the KL in nats and whether both agree on the likeliest, (B, A, d).

    Args:
        target_states: (B, T, E) normed last states of the target. lm_head: (V, E), shared by target and head.
        states: (B, A, d, E) a group, the head's normed states at its drafted positions, with gradient.
    """
    out = _ChunkedKL.apply(target_states, lm_head, rows, settings, *states)  # type: ignore[no-untyped-call]
    n = len(rows)
    return out[0], list(out[1 : 1 + n]), list(out[1 + n :])


class _ChunkedKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, target_states: Tensor, lm_head: Tensor, rows: list[LossRows], settings: TrainSettings, *states: Tensor
    ) -> tuple[Tensor, ...]:
        B, T, _ = target_states.shape
        grads = [torch.empty_like(s) for s in states]
        kls = [torch.empty(r.position.shape, device=r.position.device) for r in rows]
        hits = [torch.empty(r.position.shape, device=r.position.device, dtype=torch.bool) for r in rows]
        loss = torch.zeros((), device=target_states.device)
        scale = 1 / settings.teacher_temperature
        size = max(1, settings.chunk * B // max(1, sum(r.position.numel() for r in rows)))
        for start in range(0, B, size):
            part = slice(start, min(B, start + size))
            # Every position of the chunk once: far fewer than (anchor, depth) pairs.
            target = target_states[part].flatten(0, 1) @ lm_head.t()
            lse, top = row_stats(target, scale)
            line = T * torch.arange(part.stop - part.start, device=target.device)[:, None, None]
            for g, row in enumerate(rows):
                shape = row.position[part].shape
                index = (row.position[part] + line).flatten()
                logits = states[g][part].flatten(0, 2) @ lm_head.t()
                draft_lse, draft_top = row_stats(logits)
                weight = row.weight[part]
                if settings.reach_floor < 1:
                    chance = (logits.gather(1, top[index][:, None])[:, 0].float() - draft_lse).exp().view(shape)
                    weight = weight * reach_weight(chance, settings.reach_floor)
                kl = divergence_with_gradient_(
                    logits, target, index, draft_lse=draft_lse, target_lse=lse, weight=weight.flatten(), scale=scale
                )
                grads[g][part] = (logits @ lm_head).view(*shape, -1)
                kls[g][part] = kl.view(shape)
                hits[g][part] = (draft_top == top[index]).view(shape)
                loss += (kl.view(shape) * weight).sum()
                del logits
            del target
        ctx.save_for_backward(*grads)
        ctx.mark_non_differentiable(*kls, *hits)
        return (loss, *kls, *hits)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, None, *(g * grads[0].to(g.dtype) for g in ctx.saved_tensors))


def reach_weight(chance: Tensor, floor: float) -> Tensor:
    """Return floor + (1 - floor) * (the chance that a chain of drafts gets as far as each depth).

    Args:
        chance: (..., d) the head's probability of the target's choice at each depth.
    """
    reach = torch.cat([torch.ones_like(chance[..., :1]), chance[..., :-1].cumprod(-1)], -1)
    return floor + (1 - floor) * reach


def distil_slowly(
    target_states: Tensor, lm_head: Tensor, rows: list[LossRows], states: list[Tensor], settings: TrainSettings
) -> Tensor:
    """Compute ``distil``'s loss with plain autograd, all logits at once: the reference of the chunked one."""
    log_target = torch.log_softmax((target_states @ lm_head.t()).float() / settings.teacher_temperature, -1)
    line = torch.arange(len(log_target), device=log_target.device)[:, None, None]
    loss = torch.zeros((), device=target_states.device)
    for row, state in zip(rows, states, strict=True):
        log_draft = torch.log_softmax((state @ lm_head.t()).float(), -1)
        log_p = log_target[line, row.position]
        chance = log_draft.detach().gather(-1, log_p.argmax(-1, keepdim=True))[..., 0].exp()
        kl = (log_p.exp() * (log_p - log_draft)).sum(-1)
        loss = loss + (kl * row.weight * reach_weight(chance, settings.reach_floor)).sum()
    return loss
