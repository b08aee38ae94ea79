"""The end of a draft: from the head's hidden states to the trees of a batch, inside the draft's CUDA graph.

The head has no LM head of its own and borrows the target's, as SGLang's DFLASH does. With tensor parallelism every
rank offers its shard's likeliest tokens, and all ranks merge them alike: by logit, then by lower id. Knows no cache.
"""

from typing import Any

import torch
from torch import Tensor

from jetspec_engine.errors import ConfigError
from jetspec_engine.protocol import Candidates
from jetspec_engine.sglang_backend.draft_script import DraftScript
from jetspec_engine.sglang_backend.round_state import RoundState
from jetspec_engine.tree.candidates import top_candidates


class VocabShard:
    """This rank's rows of the target's LM head.

    Args:
        lm_head: the target's.
        group: SGLang's tensor-parallel group.
        has_kernels: as for ``RoundState``; without them there is one rank.

    Raises:
        ConfigError: a quantised head, or added vocabulary.
    """

    def __init__(self, lm_head: Any, group: Any, *, has_kernels: bool) -> None:
        weight = lm_head.weight
        if not torch.is_floating_point(weight):
            raise ConfigError("target: a quantised LM head, a tree needs an unquantised one")
        shard = getattr(lm_head, "shard_indices", None)
        if shard is not None and int(shard.num_added_elements):
            raise ConfigError("target: added vocabulary, a tree needs the base vocabulary only")
        self._weight: Tensor = weight if shard is None else weight[: int(shard.num_org_elements)]
        self._first = 0 if shard is None else int(shard.org_vocab_start_index)
        self._group, self._padded_size = group, len(weight)
        self._has_kernels = has_kernels

    def candidates(self, hidden: Tensor, width: int) -> Candidates:
        """Return the likeliest tokens of the whole vocabulary, the same on every rank.

        Args:
            hidden: (n, E).
            width: W.

        Returns:
            (n, W) ids and log-probabilities, see ``top_candidates``. No host sync; capturable.
        """
        logits = torch.matmul(hidden.to(self._weight.dtype), self._weight.T)
        if not self._has_kernels:
            return top_candidates(logits, width)
        from jetspec_engine.sglang_backend.kernels.top_candidates import ChunkResults, best_of_all, best_of_chunks

        # Ranks differ in real rows and not in padded ones, so their results have one shape.
        found = ChunkResults.allocate(rows=len(logits), vocab_size=self._padded_size, width=width, device=logits.device)
        best_of_chunks(logits, into=found, first_id=self._first)
        if self._group.world_size > 1:
            joined = {name: self._group.all_gather(getattr(found, name), dim=1) for name in ("keys", "tops", "sums")}
            found = ChunkResults(**joined)
        tokens = torch.empty((len(logits), width), dtype=torch.int64, device=logits.device)
        logprobs = torch.empty((len(logits), width), dtype=torch.float32, device=logits.device)
        best_of_all(found, tokens=tokens, logprobs=logprobs)
        return Candidates(tokens=tokens, logprobs=logprobs)


class TreeDrafter:
    """Builds the trees of a batch from the head's output, into the round's state.

    Args:
        vocab: the LM head's rows of this rank.
        state: where the trees go.
        script: drafts in place of the head's, or None.

    Attributes:
        out: (R * D,) int64, the likeliest token of every depth, where SGLang's linear round looks for it.
    """

    def __init__(self, *, vocab: VocabShard, state: RoundState, script: DraftScript | None) -> None:
        self._vocab, self._state, self._script = vocab, state, script
        shape, device = state.shape, state.prefix_lens.device
        self._offsets = torch.arange(1, shape.depth + 1, device=device)
        self.out = torch.zeros(shape.requests * shape.depth, dtype=torch.int64, device=device)

    def __call__(self, hidden: Tensor, block_ids: Tensor) -> None:
        """Build and keep the trees. Capturable; no host sync.

        Args:
            hidden: (R * (D + 1), E) the head's output, a request's block after another.
            block_ids: (R * (D + 1),) the block's tokens; the first of each is the anchor.
        """
        depth, width = self._state.shape.depth, self._state.shape.width
        blocks = hidden.view(-1, depth + 1, hidden.shape[-1])
        found = self._vocab.candidates(blocks[:, 1:].reshape(-1, hidden.shape[-1]), width)
        tokens, logprobs = (each.view(-1, depth, width) for each in (found.tokens, found.logprobs))
        if self._script is not None:
            positions = self._state.prefix_lens[: len(tokens)].unsqueeze(1) + self._offsets
            tokens, logprobs = self._script.overlay(tokens, logprobs, positions)
        self.out[: tokens.shape[0] * depth].copy_(tokens[..., 0].reshape(-1))
        self._state.build(block_ids.view(-1, depth + 1)[:, 0], tokens, logprobs)
