"""Prompts are varied, well formed, and never held-out ones."""

import re

import torch

from jetspec_engine.training.prompts import ChatFormat, HeldOut, UserTurn, compose, encode_turns, fill, load_seeds


def test_every_template_fills_from_the_slots() -> None:
    import random

    seeds = load_seeds()
    for family in seeds["families"].values():
        for template in family["templates"]:
            assert not re.search(r"[{}]", fill(template, seeds["slots"], random.Random(0))), template


def test_complete_prompts_do_not_repeat_and_follow_the_seed() -> None:
    seeds = load_seeds()
    turns = compose(seeds, 3000, seed=1)
    closed = [t.text for t in turns if not t.is_open]
    assert len(closed) == len(set(closed))
    assert len(closed) > 1500
    assert turns == compose(seeds, 3000, seed=1)
    assert turns != compose(seeds, 3000, seed=2)


def test_held_out_prompts_are_recognised() -> None:
    held = HeldOut(["What is a Comet?", "one two three four five six seven eight nine ten"])
    assert held.has("what is a comet")
    assert held.has("Zero, one two three four five six SEVEN eight!")
    assert not held.has("What is a comet made of?")
    assert not held.has("two three four five six seven eight")


def test_encoding_puts_the_turn_behind_the_template() -> None:
    chat = ChatFormat(prefixes=("<S>",), suffix="</S>", end_id=2)
    table = encode_turns(
        [UserTurn("ab", is_open=False), UserTurn("c" * 500, is_open=False), UserTurn("xyz", is_open=True)],
        chat, lambda texts: [[ord(c) for c in t] for t in texts], device=torch.device("cpu"), seed=0,
    )  # fmt: skip
    assert table.lengths.tolist() == [5, 6]
    assert table.is_open.tolist() == [False, True]
    assert bytes(table.tokens[0, :5].tolist()).decode() == "<S>ab"
