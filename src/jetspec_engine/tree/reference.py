"""Slow, obvious twins of the tree core: what the fast functions are tested against.

Written to be read, not run: no shared helper with the fast ones, no heap, no bit tricks; the best-first twin lists
every prefix there is, so it is for small D and W only.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.tree.accept import NON_FINITE, Accepted
from jetspec_engine.tree.record import DraftTree

Prefix = tuple[int, ...]  # the ranks chosen from the root on
Depth = list[tuple[int, float]]  # one depth's usable (token, log-probability), best first


def usable_reference(candidates: Candidates, width: int) -> list[Depth]:
    """Give odd log-probabilities their meaning and put each depth in order."""
    depths: list[Depth] = []
    for tokens, logprobs in zip(candidates.tokens.tolist(), candidates.logprobs.tolist(), strict=True):
        row = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            if not math.isnan(logprob) and logprob != -math.inf:
                row.append((token, min(logprob, 0.0)))
        row.sort(key=lambda pair: -pair[1])
        depths.append(row[:width])
    return depths


def best_first_reference(anchor: int, candidates: Candidates, config: TreeConfig) -> DraftTree:
    """List every prefix, put them all in order, keep the first ones (the spine before the others)."""
    depths = usable_reference(candidates, config.width)
    budget = config.resolve_budget(len(depths))
    prefixes: list[Prefix] = [()]
    totals: dict[Prefix, float] = {(): 0.0}
    previous: list[Prefix] = [()]
    for row in depths:
        level = []
        for place, prefix in enumerate(previous):
            for rank, (_, logprob) in enumerate(row):
                child = (*prefix, rank)
                totals[child] = totals[prefix] + logprob
                level.append((-totals[child], place, rank, child))
        previous = [child for *_, child in sorted(level)]
        prefixes.extend(previous)
    prefixes.sort(key=lambda prefix: -totals[prefix])  # stable: at a tie by depth, then by place within the depth
    spine = [prefix for prefix in prefixes if config.keep_spine and not any(prefix)]
    others = [prefix for prefix in prefixes if prefix not in spine]
    kept = set((spine + others)[:budget])
    return _tree_of([prefix for prefix in prefixes if prefix in kept], totals, anchor, depths)


def published_reference(anchor: int, candidates: Candidates, config: TreeConfig) -> DraftTree:
    """Pop the likeliest node, add its children; the rule of the configuration says how many."""
    depths = usable_reference(candidates, config.width)
    budget = config.resolve_budget(len(depths))
    nodes: list[Prefix] = [()]
    totals: dict[Prefix, float] = {(): 0.0}
    waiting: list[Prefix] = [()]
    spine: list[Prefix] = [()]
    while config.keep_spine and len(spine) < budget and len(spine) <= len(depths) and depths[len(spine) - 1]:
        spine.append((*spine[-1], 0))
    reserved = set(spine)
    while waiting and len(set(nodes) | reserved) < budget:
        best = min(waiting, key=lambda prefix: (-totals[prefix], len(prefix), nodes.index(prefix)))
        waiting.remove(best)
        row = depths[len(best)] if len(best) < len(depths) else []
        for rank in range(min(_cap_reference(row, candidates, config), len(row))):
            child = (*best, rank)
            if child in reserved or len(set(nodes) | reserved) < budget:
                totals[child] = totals[best] + row[rank][1]
                nodes.append(child)
                waiting.append(child)
    for prefix in spine:
        if config.keep_spine and prefix not in nodes:
            totals[prefix] = totals[prefix[:-1]] + depths[len(prefix) - 1][0][1]
            nodes.append(prefix)
    return _tree_of(nodes, totals, anchor, depths)


def _cap_reference(row: Depth, candidates: Candidates, config: TreeConfig) -> int:
    if config.rule == "accum_logp":
        return config.width
    if len(row) < 2:
        return 1
    width = min(config.width, len(candidates.tokens[0]))
    exponent = config.beta * (row[0][1] - row[1][1] - config.g0)
    share = 0.0 if exponent > 700 else 1.0 / (1.0 + math.exp(exponent))
    return max(1, round(width * share))


def _tree_of(nodes: list[Prefix], totals: dict[Prefix, float], anchor: int, depths: list[Depth]) -> DraftTree:
    lowest = float(np.finfo(np.float32).min)
    return DraftTree(
        np.array([depths[len(node) - 1][node[-1]][0] if node else anchor for node in nodes], dtype=np.int64),
        np.array([nodes.index(node[:-1]) if node else -1 for node in nodes], dtype=np.int64),
        np.array([len(node) for node in nodes], dtype=np.int64),
        np.array([max(totals[node], lowest) for node in nodes], dtype=np.float32),
    )


def ancestor_mask_reference(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Walk from every node to the root."""
    mask = np.zeros((len(parents), len(parents)), dtype=bool)
    for node in range(len(parents)):
        seen = node
        while seen >= 0:
            mask[node, seen] = True
            seen = int(parents[seen])
    return mask


def sibling_links_reference(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Look through all nodes for the first child, and for the next one with the same parent."""
    count = len(parents)
    first_child = [next((k for k in range(count) if parents[k] == node), -1) for node in range(count)]
    next_sibling = [
        next((k for k in range(node + 1, count) if parents[k] == parents[node] >= 0), -1) for node in range(count)
    ]
    return first_child, next_sibling


def accept_reference(tree: DraftTree, target_ids: Sequence[int]) -> Accepted:
    """Walk from the root, at each node looking through its children."""
    path = [0]
    while True:
        wanted = int(target_ids[path[-1]])
        children = [node for node in range(tree.num_nodes) if tree.parents[node] == path[-1]]
        correct = [node for node in children if tree.tokens[node] == wanted]
        if wanted == NON_FINITE or not correct:
            return Accepted(tuple(path), wanted)
        path.append(correct[0])


def greedy_reference(row: Sequence[float]) -> int:
    """Scan a row of logits for its first maximum."""
    if any(math.isnan(logit) or logit == math.inf for logit in row) or max(row) == -math.inf:
        return NON_FINITE
    return list(row).index(max(row))


def top_reference(row: Sequence[float], width: int) -> list[tuple[int, float]]:
    """Sort a row of logits and return (id, log-probability) of the first ones; unusable ones as (0, -inf)."""
    unusable = (0, -math.inf)
    if greedy_reference(row) == NON_FINITE:
        return [unusable] * width
    top = max(row)
    norm = top + math.log(math.fsum(math.exp(logit - top) for logit in row))
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))[:width]
    pairs = [(token, row[token] - norm) if row[token] > -math.inf else unusable for token in ranked]
    return pairs + [unusable] * (width - len(pairs))
