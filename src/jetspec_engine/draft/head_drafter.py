"""The drafter around a real draft head: context state per sequence, and one forward a round for the block.

A block's own keys are written behind the committed positions, read in the same layer, and overwritten by whatever comes
next: rejected drafts are never attended, since no read goes past the committed length plus the block at hand.
Knows nothing of trees or of the target's cache; it is lent slots and the target's embedding and LM head.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.draft.block_attention import BlockAttention
from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.context_cache import ContextCache
from jetspec_engine.draft.head import DraftHead
from jetspec_engine.draft.prepared_head import PreparedHead
from jetspec_engine.draft.rope import rope_tables
from jetspec_engine.draft.row_counts import pad_rows
from jetspec_engine.errors import EngineError
from jetspec_engine.protocol import Candidates, SlotRegion
from jetspec_engine.records import GenerateRequest
from jetspec_engine.tree.candidates import chain_candidates, top_candidates


@dataclass
class HeadSession:
    """One sequence: ``length`` committed positions have their context state in ``region``."""

    region: SlotRegion
    length: int = 0
    is_closed: bool = False

    def close(self) -> None:
        """Forget the sequence; its slots keep their state for a prefix cache."""
        self.is_closed = True


@dataclass(frozen=True)
class Block:
    """One sequence's rows of a draft forward: its anchor and the masks after it."""

    session: HeadSession
    anchor: int
    num_rows: int

    @property
    def start(self) -> int:
        """First slot of the sequence."""
        return self.session.region.start

    @property
    def length(self) -> int:
        """Committed positions; the anchor's own position."""
        return self.session.length


class HeadDrafter:
    """Drafts with a DFlash / JetSpec head. Implements ``protocol.Drafter``.

    Args:
        head: the weights; copied into fused form, not kept.
        config: the head's configuration.
        embed_tokens: the target's embedding, (T,) int64 ids -> (T, E).
        lm_head: the target's LM head after its final norm was left out, (T, E) -> (T, V). Needs no invariance: it is
            called with up to D rows a session.
        num_slots: slots of the target's pool; the context state is addressed by the same regions.
        device, dtype: of the context state and the arithmetic.
    """

    needs_hidden = True

    def __init__(
        self,
        head: DraftHead,
        config: HeadConfig,
        embed_tokens: Callable[[Tensor], Tensor],
        lm_head: Callable[[Tensor], Tensor],
        *,
        num_slots: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.depth = config, config.depth
        self._device, self._dtype = torch.device(device), dtype
        self._embed_tokens, self._lm_head = embed_tokens, lm_head
        self._head = PreparedHead(head, device=self._device, dtype=dtype)
        self._cache = ContextCache(
            num_layers=config.num_layers,
            num_slots=num_slots,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            device=self._device,
            dtype=dtype,
        )
        self._attention = BlockAttention(config, self._cache)
        self._first_prediction = 0 if config.is_shifted else 1
        num_positions = min(num_slots, config.max_position_embeddings) + config.block_size
        self._cos, self._sin = rope_tables(
            num_positions, config.head_dim, config.rope_theta, device=self._device, dtype=dtype
        )
        with torch.inference_mode():
            self._mask_row = self._embed(torch.tensor([config.mask_token_id]))

    def open(self, request: GenerateRequest, region: SlotRegion) -> HeadSession:  # noqa: ARG002 (the protocol's)
        """Begin a sequence in a region; state copied there for it stays."""
        self._cache.claim(region)
        return HeadSession(region)

    @torch.inference_mode()
    def extend(self, session: HeadSession, token_ids: Sequence[int], hidden: Any) -> None:
        """Append committed positions.

        Args:
            session: its length grows by T.
            token_ids: T ids (only counted: the head sees the target's states, not the ids).
            hidden: (T, T_l * E) tapped states, any floating dtype.

        Raises:
            EngineError: shapes that do not fit, or more positions than the region or the head has.
        """
        self._check_open(session)
        count = len(token_ids)
        if hidden is None or tuple(hidden.shape) != (count, self.config.tapped_size):
            shape = None if hidden is None else tuple(hidden.shape)
            raise EngineError(f"tapped states: {shape}, expected {(count, self.config.tapped_size)}")
        if count == 0:
            return
        end = session.length + count
        if end > self.config.max_position_embeddings:
            limit = self.config.max_position_embeddings
            raise EngineError(f"draft head: position {end - 1}, expected below {limit}, its context")
        # A round's rows are as many every time: a matrix library's last bits follow the number of rows, and what is
        # drafted must not depend on the rounds in which a text was committed, or no recording could be replayed.
        padded = max(count, self.config.block_size)
        rows = slice(session.length, session.length + padded)
        tapped = pad_rows(hidden.to(device=self._device, dtype=self._dtype), padded)
        keys, values = self._head.context_keys_values(tapped, self._cos[rows], self._sin[rows])
        self._cache.append(session.region, session.length, keys[:, :count], values[:, :count])
        session.length = end

    @torch.inference_mode()
    def propose(self, sessions: Sequence[HeadSession], anchors: Sequence[int], width: int) -> list[Candidates]:
        """Run the block of every session through the head in one batch.

        Args:
            sessions: any number; the linear layers see all their rows at once.
            anchors: each session's last emitted token, not committed yet: it stands at position ``length``.
            width: W.

        Returns:
            (D, W) candidates per session, on the device, no host sync. Depths for which the region has no room are
            marked never to be used; nothing could be committed there.
        """
        for session in sessions:
            self._check_open(session)
        blocks = [Block(s, a, self._num_rows(s)) for s, a in zip(sessions, anchors, strict=True)]
        running = [block for block in blocks if self._num_predictions(block)]
        drawn = self._draw(running, width) if running else []
        offers = iter(drawn)
        return [self._padded(next(offers) if self._num_predictions(block) else None, width) for block in blocks]

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        """Copy the context state of a prefix; False when the source holds less of it."""
        return self._cache.copy(source, destination, length)

    def adopt_prefix(self, session: HeadSession, token_ids: Sequence[int]) -> None:
        """Begin the session after a prefix whose state is in its region already.

        Raises:
            EngineError: the session has begun, or the region holds no state for the prefix.
        """
        self._check_open(session)
        if session.length:
            raise EngineError(f"draft session: {session.length} positions, expected none before a prefix is adopted")
        self._cache.keep(session.region, len(token_ids))
        session.length = len(token_ids)

    def _num_rows(self, session: HeadSession) -> int:
        """A causal head's earlier rows do not depend on later ones, so a block may be cut where the region ends."""
        return min(self.config.block_size, session.region.capacity - session.length)

    def _num_predictions(self, block: Block) -> int:
        return max(0, min(self.depth, block.num_rows - self._first_prediction))

    def _draw(self, blocks: Sequence[Block], width: int) -> list[Candidates]:
        """Return the candidates of blocks that have at least one row that predicts."""
        x = self._run_layers(blocks, self._embed_blocks(blocks))
        wanted = [
            part[self._first_prediction :][: self.depth] for part in x.split_with_sizes([b.num_rows for b in blocks])
        ]
        rows = wanted[0] if len(wanted) == 1 else torch.cat(wanted)
        normed = functional.rms_norm(rows, rows.shape[-1:], self._head.final_norm, self._head.eps)
        logits = self._lm_head(normed)
        drawn = chain_candidates(logits) if width == 1 else top_candidates(logits, width)
        counts = [len(part) for part in wanted]
        pairs = zip(drawn.tokens.split_with_sizes(counts), drawn.logprobs.split_with_sizes(counts), strict=True)
        return [Candidates(tokens=tokens, logprobs=logprobs) for tokens, logprobs in pairs]

    def _embed_blocks(self, blocks: Sequence[Block]) -> Tensor:
        """Return the embedded blocks, one below the other: the anchor in row 0 of each, MASK in the others."""
        counts = [block.num_rows for block in blocks]
        x = self._mask_row.repeat(sum(counts), 1)
        anchors = self._embed(torch.tensor([block.anchor for block in blocks]))
        first = 0
        for index, count in enumerate(counts):
            x[first] = anchors[index]
            first += count
        return x

    def _run_layers(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        cos, sin = self._positions(self._cos, blocks), self._positions(self._sin, blocks)
        counts = [block.num_rows for block in blocks]
        eps = self._head.eps
        for index, layer in enumerate(self._head.layers):
            q, k, v = layer.queries_keys_values(x, cos, sin, eps)
            parts = zip(
                blocks, q.split_with_sizes(counts), k.split_with_sizes(counts), v.split_with_sizes(counts), strict=True
            )
            attended = [self._attention.attend(index, block.start, block.length, rows) for block, *rows in parts]
            x = layer.finish(x, attended[0] if len(attended) == 1 else torch.cat(attended), eps)
        return x

    def _positions(self, table: Tensor, blocks: Sequence[Block]) -> Tensor:
        parts = [table[block.length : block.length + block.num_rows] for block in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _padded(self, drawn: Candidates | None, width: int) -> Candidates:
        found = 0 if drawn is None else len(drawn.tokens)
        if drawn is not None and found == self.depth:
            return drawn
        tokens = torch.zeros(self.depth, width, dtype=torch.int64, device=self._device)
        logprobs = torch.full((self.depth, width), float("-inf"), device=self._device)
        if drawn is not None:
            tokens[:found], logprobs[:found] = drawn.tokens, drawn.logprobs
        return Candidates(tokens=tokens, logprobs=logprobs)

    def _embed(self, ids: Tensor) -> Tensor:
        return self._embed_tokens(ids.to(self._device)).to(self._dtype)

    def _check_open(self, session: HeadSession) -> None:
        if session.is_closed:
            raise EngineError("draft session: used after it was closed")
