"""Quick figures of held-out text for the training curve: one number a depth, no trees."""

import torch

from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import BlockGroup, HeadBlocks, Parameters
from jetspec_engine.training.text_pool import TextPool

NUM_ANCHORS = 32
BATCH_ROWS = 32


@torch.no_grad()
def agreement(
    head: HeadBlocks, parameters: Parameters, target: FrozenTarget, pool: TextPool
) -> dict[str, float | list[float]]:
    """Return quick figures of a held-out pool: how often each depth's likeliest token is the text's own.

    Returns:
        ``by_depth``: D rates; ``chain``: mean tokens a round would emit if every position were an anchor.
    """
    head, target, config = head.eager(), target.eager(), head.config
    D = config.block_size - 1
    hits, seen = torch.zeros(D, device=target.device), torch.zeros(D, device=target.device)
    chain, count = torch.zeros((), device=target.device), 0
    for rows in torch.split(torch.arange(len(pool)), BATCH_ROWS):
        part = pool.batch(rows)
        states, _ = target.read(part.tokens, config.target_layer_ids)
        context = head.context(parameters, states)
        anchors = pool.draw_anchors(rows, [NUM_ANCHORS], seed=0)[0]
        drafted = head.run(parameters, context, part.tokens, [BlockGroup(anchors, config.block_size)])[0][:, :, 1:]
        top = torch.stack([target.logits(d.to(target.dtype)).argmax(-1) for d in drafted])
        position = anchors[..., None] + torch.arange(1, D + 1, device=anchors.device)
        is_inside = position < part.lengths[:, None, None]
        truth = part.tokens.gather(1, position.clamp(max=part.tokens.shape[1] - 1).flatten(1)).view_as(top)
        hit = (top == truth) & is_inside
        hits += hit.sum((0, 1))
        seen += is_inside.sum((0, 1))
        chain += (1 + hit.long().cumprod(-1).sum(-1)).sum()
        count += anchors.numel()
    return {
        "by_depth": [round(x, 4) for x in (hits / seen.clamp(min=1)).tolist()],
        "chain": round(float(chain) / max(count, 1), 4),
    }
