"""Faults of drafting. They cost acceptance and change no token: only the expected accept histogram sees them."""

from collections.abc import Sequence
from typing import Any

import torch

from jetspec_engine.draft import block_attention, context_cache, head_drafter
from jetspec_engine.embedded import round as rounds
from jetspec_engine.protocol import Candidates
from jetspec_engine.selftest.mutants import MutantTable, Patch
from jetspec_engine.tree.candidates import top_candidates

TABLE = MutantTable()


@TABLE.add("the head's block attends both ways")
def head_bidirectional() -> Sequence[Patch]:
    init = block_attention.BlockAttention.__init__

    def faulty(self: Any, config: Any, cache: Any) -> None:
        init(self, config, cache)
        self._is_causal = False

    return [(block_attention.BlockAttention, "__init__", faulty)]


@TABLE.add("the head's block holds MASK in slot 0 instead of the anchor")
def mask_in_slot_0() -> Sequence[Patch]:
    def faulty(self: Any, blocks: Any) -> Any:
        return self._mask_row.repeat(sum(block.num_rows for block in blocks), 1)

    return [(head_drafter.HeadDrafter, "_embed_blocks", faulty)]


@TABLE.add("the head's rotary positions are one ahead of its context's")
def head_rope_ahead() -> Sequence[Patch]:
    def faulty(self: Any, table: Any, blocks: Any) -> Any:
        return torch.cat([table[block.length + 1 : block.length + 1 + block.num_rows] for block in blocks])

    return [(head_drafter.HeadDrafter, "_positions", faulty)]


@TABLE.add("committed positions are counted but not written: the head attends to its old block")
def stale_draft_cache() -> Sequence[Patch]:
    append = context_cache.ContextCache.append

    def faulty(self: Any, region: Any, length: int, keys: Any, values: Any) -> None:
        if keys.shape[1] > 8:
            append(self, region, length, keys, values)
        else:
            self._filled[region.start] = length + keys.shape[1]

    return [(context_cache.ContextCache, "append", faulty)]


def _hidden_rows(pick: Any) -> Sequence[Patch]:
    keep = rounds._keep

    def faulty(request: Any, path: Any, hidden: Any, parts: Any) -> None:
        keep(request, path, pick(hidden, list(path)), parts)

    return [(rounds, "_keep", faulty)]


@TABLE.add("the head is given the states of rejected nodes: the first rows, not the path's")
def hidden_of_rejected_nodes() -> Sequence[Patch]:
    def pick(hidden: Any, path: list[int]) -> Any:
        shuffled = hidden.clone()
        shuffled[path] = hidden[: len(path)]
        return shuffled

    return _hidden_rows(pick)


@TABLE.add("the tapped layers are concatenated in the wrong order")
def taps_swapped() -> Sequence[Patch]:
    return _hidden_rows(lambda hidden, path: torch.cat(hidden.chunk(2, -1)[::-1], -1))


@TABLE.add("a tie between drafts goes to the higher id")
def draft_tie_last_wins() -> Sequence[Patch]:
    top = top_candidates

    def faulty(logits: Any, width: int = 1) -> Any:
        drawn = top(logits.flip(-1), width)
        return Candidates(tokens=logits.shape[-1] - 1 - drawn.tokens, logprobs=drawn.logprobs)

    return [(head_drafter, "top_candidates", faulty), (head_drafter, "chain_candidates", faulty)]


@TABLE.add("trees fall back to the root alone without a word")
def drafts_never_verified() -> Sequence[Patch]:
    build = rounds.build

    def faulty(turns: Any, parts: Any) -> None:
        if parts.tree.width > 1:
            for turn in turns:
                turn.candidates = None
        build(turns, parts)

    return [(rounds, "build", faulty)]


@TABLE.add("candidates of neighbouring depths change places")
def depths_shifted() -> Sequence[Patch]:
    build = rounds.build

    def faulty(turns: Any, parts: Any) -> None:
        for turn in turns:
            if turn.candidates is not None:
                offer = turn.candidates
                turn.candidates = Candidates(tokens=offer.tokens.roll(1, 0), logprobs=offer.logprobs.roll(1, 0))
        build(turns, parts)

    return [(rounds, "build", faulty)]
