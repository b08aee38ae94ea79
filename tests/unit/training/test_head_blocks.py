"""Blocks trained together equal blocks run alone, and see what they may see and nothing else."""

import torch

from jetspec_engine.draft.head import DraftHead
from jetspec_engine.draft.reference import reference_logits
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import BlockGroup, HeadBlocks, measure_feature_scale
from jetspec_engine.training.text_pool import TextPool


def _states(target: FrozenTarget, pool: TextPool) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = pool.batch(torch.arange(2)).tokens
    return tokens, target.read(tokens, (0, 1))[0]


def test_blocks_together_equal_blocks_alone(
    head: HeadBlocks, parameters: dict, target: FrozenTarget, pool: TextPool
) -> None:
    tokens, states = _states(target, pool)
    groups = [BlockGroup(torch.tensor([[1, 9, 20], [0, 5, 21]]), 3), BlockGroup(torch.tensor([[4], [17]]), 6)]
    together = head.run(parameters, head.context(parameters, states), tokens, groups)
    for group, result in zip(groups, together, strict=True):
        for b in range(2):
            for a, anchor in enumerate(group.anchors[b].tolist()):
                context = head.context(parameters, states[b : b + 1, : max(1, anchor)])
                alone = head.run(
                    parameters, context, tokens[b : b + 1], [BlockGroup(group.anchors[b : b + 1, a : a + 1], 6)]
                )
                expected = alone[0][0, 0, : group.num_positions]
                torch.testing.assert_close(result[b, a], expected, rtol=1e-4, atol=1e-5)


def test_a_block_sees_its_context_and_its_own_past_only(
    head: HeadBlocks, parameters: dict, target: FrozenTarget, pool: TextPool
) -> None:
    tokens, states = _states(target, pool)
    states = states.clone().requires_grad_()
    group = BlockGroup(torch.tensor([[10, 14], [10, 14]]), 6)
    embedding = head.embedding.clone().requires_grad_()
    head.embedding = embedding
    out = head.run(parameters, head.context(parameters, states), tokens, [group])[0]
    (seen,) = torch.autograd.grad(out[0, 0].square().sum(), states, retain_graph=True)
    is_seen = seen.abs().sum(-1) > 0
    assert is_seen[0, :10].all()
    assert not is_seen[0, 10:].any()
    assert not is_seen[1].any()
    (by_token,) = torch.autograd.grad(out[0, 0, 0].square().sum(), embedding)
    assert by_token.abs().sum(-1).nonzero().flatten().tolist() == [int(tokens[0, 10])]


def test_the_saved_scale_is_inside_fc(head: HeadBlocks, parameters: dict, target: FrozenTarget, pool: TextPool) -> None:
    _, states = _states(target, pool)
    folded = {k: v.float() for k, v in head.folded(parameters).items()}
    plain = HeadBlocks(head.config, target.embedding, torch.ones(64), dtype=torch.float32, max_positions=256)
    torch.testing.assert_close(plain.context(folded, states), head.context(parameters, states), rtol=0.03, atol=0.03)


def test_the_feature_scale_ignores_massive_activations() -> None:
    states = torch.randn(4, 50, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0] * 4 + [9.0] * 4)
    states[0, 0] = 1e4
    scale = measure_feature_scale(states, torch.ones(4, 50, dtype=torch.bool), num_taps=2)
    assert (scale[:4] > 0.8).all()
    assert (scale[4:] < 0.2).all()


def test_it_is_the_function_of_the_shipped_module(
    head: HeadBlocks, parameters: dict, target: FrozenTarget, pool: TextPool
) -> None:
    tokens, states = _states(target, pool)
    folded = {k: v.float() for k, v in head.folded(parameters).items()}
    module = DraftHead(head.config)
    module.load_state_dict(folded)
    plain = HeadBlocks(head.config, target.embedding, torch.ones(64), dtype=torch.float32, max_positions=256)
    anchors = torch.tensor([[1, 13], [0, 20]])
    out = plain.run(folded, plain.context(folded, states), tokens, [BlockGroup(anchors, 6)])[0]
    for b in range(2):
        for a, anchor in enumerate(anchors[b].tolist()):
            with torch.no_grad():
                expected = reference_logits(
                    module, target.embedding, target.lm_head, states[b, :anchor], int(tokens[b, anchor])
                )
            torch.testing.assert_close(target.logits(out[b, a, 1:]), expected, rtol=1e-3, atol=1e-4)
