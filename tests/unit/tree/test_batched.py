"""The batched builder's switches and shapes. Its equality with the heap is in tests/property/tree."""

import pytest
import torch

from jetspec_engine.tree.batched import build_best_first_batched
from support.tree_cases import random_candidates


def inputs(rows: int = 2):
    candidates = [random_candidates(seed) for seed in range(rows)]
    tokens = torch.stack([torch.from_numpy(c.tokens) for c in candidates])
    logprobs = torch.stack([torch.from_numpy(c.logprobs) for c in candidates])
    return torch.arange(rows), tokens, logprobs


def test_R17_budget_and_width_switch_without_changing_a_shape():
    anchors, tokens, logprobs = inputs()
    full = build_best_first_batched(anchors, tokens, logprobs, num_nodes=64)
    for budget, width, expected in ((64, 8, 64), (16, 8, 16), (64, 1, 16), (5, 1, 5), (1, 8, 1)):
        trees = build_best_first_batched(
            anchors, tokens, logprobs, num_nodes=64, budget=torch.tensor(budget), width=torch.tensor(width)
        )
        assert trees.num_nodes.tolist() == [expected, expected]
        for name in trees.__slots__:
            assert getattr(trees, name).shape == getattr(full, name).shape
            assert getattr(trees, name).dtype == getattr(full, name).dtype


def test_left_out_switches_mean_the_maxima():
    anchors, tokens, logprobs = inputs()
    plain = build_best_first_batched(anchors, tokens, logprobs, num_nodes=20)
    given = build_best_first_batched(
        anchors,
        tokens,
        logprobs,
        num_nodes=20,
        budget=torch.tensor([20, 20]),
        width=torch.tensor([8, 8]),
        keep_spine=torch.tensor(False),
    )
    for name in plain.__slots__:
        assert torch.equal(getattr(plain, name), getattr(given, name))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_does_not_depend_on_its_neighbours(rows):
    anchors, tokens, logprobs = inputs(3)
    together = build_best_first_batched(anchors, tokens, logprobs, num_nodes=32)
    for row in range(rows):
        alone = build_best_first_batched(
            anchors[row : row + 1], tokens[row : row + 1], logprobs[row : row + 1], num_nodes=32
        )
        for name in alone.__slots__:
            assert torch.equal(getattr(alone, name)[0], getattr(together, name)[row])


def test_inputs_are_left_as_they_were():
    anchors, tokens, logprobs = inputs()
    copies = [tensor.clone() for tensor in (anchors, tokens, logprobs)]
    build_best_first_batched(anchors, tokens, logprobs, num_nodes=32, keep_spine=True)
    for tensor, copy in zip((anchors, tokens, logprobs), copies, strict=True):
        assert torch.equal(tensor, copy)
