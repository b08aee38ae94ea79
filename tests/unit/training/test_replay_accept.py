"""The replay counts what an engine would count, with the trees an engine would build."""

from collections.abc import Callable

import pytest
import torch

from jetspec_engine.config import TreeConfig
from jetspec_engine.training.agreement import agreement
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import HeadBlocks
from jetspec_engine.training.replay import (
    Drafts,
    accept_table,
    draft_everywhere,
    measured_trees,
    num_correct,
    replay,
    write_greedy,
)
from jetspec_engine.tree.record import DraftTree

LINEAR = TreeConfig(width=1, budget=None)


def _drafts(text: list[int], guesses: list[list[int]]) -> Drafts:
    """Two candidates a depth: the guess with 0.8, token 99 with 0.1."""
    tokens = torch.tensor([[[g, 99] for g in row] for row in guesses])
    logprobs = torch.tensor([0.8, 0.1]).log().expand(len(text), len(guesses[0]), 2)
    return Drafts(text, tokens, logprobs)


def test_a_replay_emits_the_text_once() -> None:
    text = [5, 6, 7, 8, 9, 10]
    guesses = [[6, 7, 1], [0, 0, 0], [0, 0, 0], [9, 10, 0], [0, 0, 0], [0, 0, 0]]
    assert replay(_drafts(text, guesses), LINEAR) == (5, 2)
    assert replay(_drafts(text, [[0, 0, 0]] * 6), LINEAR) == (5, 5)
    assert replay(_drafts(text, [[6, 7, 8]] + [[0] * 3] * 5), TreeConfig(width=1, budget=1)) == (5, 5)


def test_a_tree_finds_what_the_chain_misses() -> None:
    text = [5, 99, 7]
    drafts = _drafts(text, [[6, 7, 0], [0, 0, 0], [0, 0, 0]])
    assert replay(drafts, LINEAR) == (2, 2)
    assert replay(drafts, TreeConfig(rule="best_first", width=2, budget=16)) == (2, 1)


def test_correct_tokens_are_a_path_from_the_root() -> None:
    tree = DraftTree.chain([1, 2, 3])
    assert [num_correct(tree, t) for t in ([2, 3, 4], [2, 9], [3], [])] == [2, 1, 0, 0]


def test_the_table_pools_tokens_and_rounds() -> None:
    good, bad = _drafts([5, 6, 7], [[6, 7, 0]] * 3), _drafts([5, 6, 7, 8], [[0, 0, 0]] * 4)
    table = accept_table([good, bad], ["code", "chat"], {"linear": LINEAR})
    assert table["code"]["linear"] == 2.0
    assert table["chat"]["linear"] == 1.0
    assert table["pooled"]["linear"] == pytest.approx(5 / 4)
    assert table["class_mean"]["linear"] == 1.5
    assert set(measured_trees(8)) >= {"linear", "best_first_16", "best_first_64", "top2gap_16"}


def test_drafts_are_the_heads_likeliest_tokens(
    head: HeadBlocks, parameters: dict, target: FrozenTarget, pools: Callable
) -> None:
    pool = pools(3)
    found = draft_everywhere(head, parameters, target, pool, width=61, batch=2)
    for row, one in enumerate(found):
        start, end = int(pool.answer_starts[row]), int(pool.lengths[row])
        assert one.text == pool.tokens[row, start:end].tolist()
        assert one.tokens.shape == (end - start, 5, 61)
        torch.testing.assert_close(one.logprobs.exp().sum(-1), torch.ones(end - start, 5))
        assert (one.logprobs.diff(dim=-1) <= 0).all()


def test_greedy_text_is_the_teacher_forced_argmax_in_order(target: FrozenTarget) -> None:
    prompts = [[5, 6, 7, 8, 9], [11, 12], [21, 22, 23]]
    pool = write_greedy(target, prompts, 12, end_id=2)
    _, last = target.read(pool.tokens.long())
    choice = target.logits(last).argmax(-1)
    for row, prompt in enumerate(prompts):
        start, end = int(pool.answer_starts[row]), int(pool.lengths[row])
        assert pool.tokens[row, :start].tolist() == prompt
        assert choice[row, start - 1 : end - 1].tolist() == pool.tokens[row, start:end].tolist()
        assert end - start == 12 or int(pool.tokens[row, end - 1]) == 2


def test_agreement_is_a_rate(head: HeadBlocks, parameters: dict, target: FrozenTarget, pools: Callable) -> None:
    figures = agreement(head, parameters, target, pools(4))
    assert len(figures["by_depth"]) == 5
    assert all(0 <= x <= 1 for x in figures["by_depth"])
    assert 1 <= figures["chain"] <= 6
