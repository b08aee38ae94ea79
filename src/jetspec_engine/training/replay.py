"""Replays recorded greedy text with a head: how many tokens a round emits, for the chain and for trees.

Greedy decoding with any lossless drafter emits the target's greedy text, so the accept length follows from that text
and the head's candidates at every position; no tree is verified here. The trees are built by ``tree``'s builders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.training.frozen_target import FrozenTarget, StaticCache
from jetspec_engine.training.head_blocks import BlockGroup, HeadBlocks, Parameters
from jetspec_engine.training.text_pool import TextPool
from jetspec_engine.tree.record import DraftTree
from jetspec_engine.tree.rules import BUILDERS


@dataclass(frozen=True)
class Drafts:
    """One conversation's answer and the head's candidates at each of its positions, all on the CPU.

    Attributes:
        text: A answer tokens. tokens: (A, D, W) int64, likeliest first. logprobs: (A, D, W) float32, nats.
    """

    text: list[int]
    tokens: Tensor
    logprobs: Tensor


def measured_trees(width: int) -> dict[str, TreeConfig]:
    """Return the trees an evaluation reports: the chain, best-first and the published top2gap."""
    trees = {"linear": TreeConfig(width=1, budget=None)}
    for budget in (16, 32, 64, 128):
        trees[f"best_first_{budget}"] = TreeConfig(rule="best_first", width=width, budget=budget)
    for budget in (16, 64):
        trees[f"top2gap_{budget}"] = TreeConfig(rule="top2gap", width=width, budget=budget)
    return trees


@torch.no_grad()
def write_greedy(target: FrozenTarget, prompts: Sequence[Sequence[int]], num_new: int, end_id: int) -> TextPool:
    """Let the target answer greedily, all prompts at once, loops and all; rows stay in the prompts' order.

    Args:
        prompts: token ids up to where the answer starts. num_new: most answer tokens; end_id ends one earlier.
    """
    device, R = target.device, len(prompts)
    starts = torch.tensor([len(p) for p in prompts], device=device)
    width = int(starts.max()) + num_new
    tokens = torch.zeros(R, width + 1, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, device=device)
    cache = StaticCache(target.config, R, width, device, target.dtype)
    ends = starts + num_new
    for t in range(width - 1):
        logits = target.decode(tokens[:, t], torch.full((R,), t, device=device), cache)
        is_answer = (t + 1 >= starts) & (t + 1 < ends)
        tokens[:, t + 1] = torch.where(is_answer, logits.argmax(-1), tokens[:, t + 1])
        ends = torch.where(is_answer & (tokens[:, t + 1] == end_id), t + 2, ends)
    tokens = torch.where(torch.arange(width + 1, device=device) < ends[:, None], tokens, 0)
    return TextPool(tokens.int(), ends.cpu(), starts.cpu(), torch.ones(R, dtype=torch.bool))


@torch.no_grad()
def draft_everywhere(
    head: HeadBlocks, parameters: Parameters, target: FrozenTarget, pool: TextPool, *, width: int, batch: int = 16
) -> list[Drafts]:
    """Run the head at every answer position of every conversation. Syncs with the host once a conversation."""
    head, target, config = head.eager(), target.eager(), head.config
    out: list[Drafts] = []
    lm_head = target.lm_head.float()
    for rows in torch.split(torch.arange(len(pool)), batch):
        part = pool.batch(rows)
        states, _ = target.read(part.tokens, config.target_layer_ids)
        context = head.context(parameters, states)
        starts = pool.answer_starts[rows].tolist()
        spans = (pool.lengths[rows] - pool.answer_starts[rows]).tolist()
        anchors = part.answer_starts[:, None] + torch.arange(max(spans), device=part.tokens.device)
        anchors = torch.minimum(anchors, (part.lengths - 1)[:, None])
        blocks = head.run(parameters, context, part.tokens, [BlockGroup(anchors, config.block_size)])[0]
        for b, (start, span) in enumerate(zip(starts, spans, strict=True)):
            logprobs = torch.log_softmax(blocks[b, :span, 1:].float() @ lm_head.t(), -1)
            top, ids = logprobs.topk(width, -1)
            out.append(Drafts(part.tokens[b, start : start + span].tolist(), ids.cpu(), top.cpu()))
    return out


def replay(drafts: Drafts, tree: TreeConfig) -> tuple[int, int]:
    """Walk one answer round by round; return (emitted tokens, rounds).

    The first token comes from the prefill and is not counted; the last round counts what it emits inside the text.
    """
    build = BUILDERS[tree.rule]
    last, at, rounds = len(drafts.text) - 1, 0, 0
    while at < last:
        built = build(drafts.text[at], Candidates(tokens=drafts.tokens[at], logprobs=drafts.logprobs[at]), tree)
        at += min(num_correct(built, drafts.text[at + 1 :]) + 1, last - at)
        rounds += 1
    return last, rounds


def num_correct(tree: DraftTree, truth: Sequence[int]) -> int:
    """Return how many tokens of the truth the tree holds as a path from its root."""
    children = {key: node for node, key in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))}
    node, count = 0, 0
    for token in truth:
        child = children.get((node, token))
        if child is None:
            break
        node, count = child, count + 1
    return count


def accept_table(
    drafts: Sequence[Drafts], classes: Sequence[str], trees: Mapping[str, TreeConfig]
) -> dict[str, dict[str, float]]:
    """Return accept lengths (emitted tokens / rounds) by class, ``pooled`` over everything, and ``class_mean``."""
    totals: dict[str, dict[str, list[int]]] = {}
    for one, label in zip(drafts, classes, strict=True):
        for name, tree in trees.items():
            tokens, rounds = replay(one, tree)
            for key in (label, "pooled"):
                total = totals.setdefault(key, {}).setdefault(name, [0, 0])
                total[0] += tokens
                total[1] += rounds
    labels = sorted(set(classes))
    table = {
        key: {name: round(tokens / max(rounds, 1), 4) for name, (tokens, rounds) in totals[key].items()}
        for key in [*labels, "pooled"]
    }
    table["class_mean"] = {name: round(sum(table[c][name] for c in labels) / len(labels), 4) for name in trees}
    return table
