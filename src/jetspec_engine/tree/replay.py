"""Replays a recorded answer under a tree setting: the rounds that a live engine would run, without any model.

A lossless engine emits the target's greedy text whatever it drafts, and the drafter's offer depends on the committed
text alone; so text and offers, recorded once, decide every round of every setting. Knows nothing of time, nor of how
a recording is made. Needs numpy only.
"""

import numpy as np

from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.records import Recording, ReplayedRound
from jetspec_engine.tree.record import DraftTree
from jetspec_engine.tree.rules import BUILDERS


def replay(recording: Recording, tree: TreeConfig) -> list[ReplayedRound]:
    """Return the rounds after the prefill, whose own token is not among them.

    Args:
        recording: recorded with at least ``tree.width`` candidates a depth.
        tree: a setting that drafts; a budget of 1 is plain decoding.
    """
    build = BUILDERS[tree.rule]
    text, depth = recording.token_ids, recording.shape[1]
    tokens = np.frombuffer(recording.tokens, "<i4").reshape(recording.shape)[..., : tree.width].astype(np.int64)
    logprobs = np.frombuffer(recording.logprobs, "<f4").reshape(recording.shape)[..., : tree.width]
    rounds, at, last = [], 0, len(text) - 1
    while at < last:
        # As in a live round: a draft beyond the cap could not be emitted, and none is made for the last token.
        useful = min(depth, recording.cap - at - 2)
        built = DraftTree.root_only(text[at])
        if useful > 0 and tree.resolve_budget(depth) > 1:
            offer = Candidates(tokens=tokens[at, :useful], logprobs=logprobs[at, :useful])
            built = build(text[at], offer, tree)
        num_correct = _num_correct(built, text[at + 1 :])
        num_emitted = min(num_correct + 1, last - at)
        rounds.append(ReplayedRound(num_nodes=built.num_nodes, num_emitted=num_emitted, num_correct=num_correct))
        at += num_emitted
    return rounds


def _num_correct(tree: DraftTree, truth: tuple[int, ...]) -> int:
    """Return how many tokens of the truth lie on one path from the root."""
    last, count = 0, 0
    # Parents come before children, so one pass over the nodes is the whole walk.
    for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
        if count < len(truth) and parent == last and token == truth[count] and node:
            last, count = node, count + 1
    return count
