"""The target's verify: one forward over the rows of several sequences, invariant to everything but a row's own text.

Knows the decoder, the state and the attention, and puts them together; knows nothing of drafts, acceptance or
requests. Plain decoding is a tree of one node, a linear verify is a chain, a prefill chunk is a chain of the prompt:
there is one code path, and a node's bits depend only on the tokens from the text's start to it.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jetspec_engine.config import check_integer
from jetspec_engine.embedded.attention import AttentionSetup, BatchAttention, HeadShape, cut_chain
from jetspec_engine.embedded.attention_choice import choose_arithmetic
from jetspec_engine.embedded.delta_scan import DeltaScan, HybridBatch
from jetspec_engine.embedded.delta_state import DeltaState
from jetspec_engine.embedded.linear import LinearFactory, RowwiseLayer
from jetspec_engine.embedded.precision import strict_precision
from jetspec_engine.embedded.rows import shared_row_count
from jetspec_engine.embedded.state import KeyValueState
from jetspec_engine.embedded.sums import MAX_SEQUENTIAL_NODES
from jetspec_engine.errors import EngineError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.decoder import Decoder, DecoderLayer
from jetspec_engine.models.hybrid import HybridLayer
from jetspec_engine.models.rotary import rotary_table
from jetspec_engine.protocol import SlotRegion, VerifyItem, VerifyResult
from jetspec_engine.tree.mask import positions

# Drafts of the last rounds may reach beyond the context; they are computed, and never kept.
POSITIONS_BEYOND_CONTEXT = 1024


class DecoderTarget:
    """``protocol.TargetModel`` over a decoder.

    Args:
        config: of the target.
        weights: as ``weights.load_weights`` returns them, all float32 or all bfloat16 on one device. Emptied: the
            layers take them over.
        num_slots: cache slots for all sequences together.
        max_seq_len: longest text; None takes the model's context.
        max_nodes: largest tree that is no chain; chains may have any length.
        taps: layers whose states are returned, 0 for the states after the first layer.

    Raises:
        ConfigError: a number out of range.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: dict[str, Tensor],
        *,
        num_slots: int,
        max_seq_len: int | None = None,
        max_nodes: int = MAX_SEQUENTIAL_NODES,
        taps: Sequence[int] = (),
    ) -> None:
        embedding = weights["embed_tokens.weight"]
        self.dtype, self.device = embedding.dtype, embedding.device
        self.vocab_size, self.hidden_size = config.vocab_size, config.hidden_size
        self.max_seq_len = config.max_position_embeddings if max_seq_len is None else max_seq_len
        self.num_slots, self.taps, self.num_forwards = num_slots, tuple(taps), 0
        self._max_nodes = max_nodes
        check_integer("num_slots", num_slots, 1, 1 << 40)
        check_integer("max_seq_len", self.max_seq_len, 1, config.max_position_embeddings)
        for tap in self.taps:
            check_integer("taps", tap, 0, config.num_layers - 1)
        with torch.inference_mode(), strict_precision():
            arithmetic = choose_arithmetic(config, weights, self.device, max_nodes)
            self._factory = LinearFactory(self.dtype, self.device)
            make_layer = DecoderLayer if config.is_dense else HybridLayer
            self._decoder = Decoder(config, weights, self._factory, make_layer)
            self._is_padding = config.is_dense
            self._rotations = rotary_table(config, self.max_seq_len + POSITIONS_BEYOND_CONTEXT).to(self.device)
        self.state = KeyValueState(
            num_layers=len(config.attention_layers),
            num_heads=config.num_kv_heads,
            num_slots=num_slots,
            head_dim=config.head_dim,
            key_dtype=arithmetic.scores.key_dtype,
            value_dtype=arithmetic.sums.value_dtype,
            num_guard_slots=arithmetic.scores.min_keys,
            device=self.device,
        )
        self.delta = DeltaState(config.delta, self.dtype, self.device) if config.delta is not None else None
        self._attention = AttentionSetup(
            state=self.state,
            heads=HeadShape(
                num_kv_heads=config.num_kv_heads,
                group=config.num_heads // config.num_kv_heads,
                head_dim=config.head_dim,
            ),
            arithmetic=arithmetic,
            windows=[config.sliding_windows[layer] for layer in config.attention_layers],
        )

    @property
    def lm_head(self) -> Callable[[Tensor], Tensor]:
        """The LM head without the final norm, (n, E) -> (n, V): a draft head shares it, and its packed weight."""
        return self._decoder.lm_head

    @torch.inference_mode()
    def verify(self, items: Sequence[VerifyItem]) -> list[VerifyResult]:
        """Run one forward over all items' nodes under their ancestor masks; writes state for every node.

        Args:
            items: one per sequence; their regions must not overlap.

        Returns:
            One result an item, in order; tensors on the target's device. The caller owns them.

        Raises:
            EngineError: an item that does not fit its region or the context, or a tree that is none; no state is
                written then.
        """
        self.num_forwards += 1
        for item in items:
            self._check(item)
        with strict_precision():
            return self._forward(items) if items else []

    def commit(self, region: SlotRegion, length: int, path: Sequence[int]) -> None:
        """Keep the state of the path's nodes as positions ``length ..``; every other node's is dropped.

        Args:
            region: the sequence's slots.
            length: committed tokens before this round.
            path: node indices from the root on, each the parent of the next.

        Raises:
            EngineError: indices that are no path from the root.
        """
        nodes = [int(node) for node in path]
        is_ascending = all(low < high for low, high in pairwise(nodes))
        if (nodes and nodes[0] != 0) or not is_ascending or length + max(nodes, default=0) >= region.capacity:
            raise EngineError(f"commit: path {nodes} at length {length}, expected ascending nodes from 0 in the region")
        with torch.inference_mode():
            if self.delta is not None:
                self.delta.commit(region, length, nodes)
            self.state.keep_path(region, length, nodes)

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        """Copy the state of the first ``length`` positions.

        Keys and values can be cut anywhere; a recurrent state only where it stands, so False for any other length.
        """
        most = min(source.capacity, destination.capacity)
        if length > most:
            raise EngineError(f"copy_prefix: {length} positions, expected at most {most}")
        if self.delta is not None and not self.delta.copy(source, destination, length):
            return False
        with torch.inference_mode():
            self.state.copy(source, destination, length)
        return True

    def forget(self, region: SlotRegion) -> None:
        """Drop what a region's sequence left, when the region is given back; keys and values need no dropping."""
        if self.delta is not None:
            self.delta.forget(region)

    def describe(self) -> Mapping[str, Any]:
        """Return what was chosen at load, the bytes of the caches, and whether a cached text can be reused in part."""
        policies = {name: (policy.min_rows, policy.max_rows) for name, policy in self._factory.policies.items()}
        return {
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "attention": [
                type(part).__name__ for part in (self._attention.arithmetic.scores, self._attention.arithmetic.sums)
            ],
            "weights": self._factory.layout.name,
            "row_policy": policies,
            "state_bytes": self.state.num_bytes,
            "can_cut_prefix": self.delta is None,
        }

    def _forward(self, items: Sequence[VerifyItem]) -> list[VerifyResult]:
        counts = [item.tree.num_nodes for item in items]
        num_rows = self._num_rows(sum(counts))
        padding = np.zeros(num_rows - sum(counts), np.int64)
        tokens = torch.from_numpy(np.concatenate([*(item.tree.tokens for item in items), padding])).to(self.device)
        rotations = self._rotations[torch.from_numpy(self._positions(items)).to(self.device)]
        pieces = [piece for item in items for piece in cut_chain(item, self._attention.heads)]
        batch = BatchAttention(pieces, self._attention, num_rows=num_rows, rotations=rotations, dtype=self.dtype)
        if self.delta is None:
            hidden, tapped = self._decoder.hidden(tokens, batch, self.taps)
        else:
            scan = DeltaScan(items, self.delta, self.device)
            hidden, tapped = self._decoder.hidden(tokens, HybridBatch(batch, scan), self.taps)
            scan.finish()
        hidden = hidden[: sum(counts)]
        wanted = [
            states[item.logits_from :] for item, states in zip(items, hidden.split_with_sizes(counts), strict=True)
        ]
        sizes = [len(states) for states in wanted]
        logits = self._decoder.logits(torch.cat(wanted)) if sum(sizes) else hidden.new_empty((0, self.vocab_size))
        taps = torch.cat(tapped, -1)[: sum(counts)].split_with_sizes(counts) if self.taps else [None] * len(items)
        return [
            VerifyResult(logits=own, hidden=states)
            for own, states in zip(logits.split_with_sizes(sizes), taps, strict=True)
        ]

    def _num_rows(self, count: int) -> int:
        """Return how many rows to run for ``count``: dense layers are spared a padding of their own."""
        if not self._is_padding:
            return count
        head = self.lm_head
        own = head.policy if isinstance(head, RowwiseLayer) else None
        # The LM head is given the wanted rows alone, and pads them itself.
        return shared_row_count(count, [policy for policy in self._factory.policies.values() if policy is not own])

    def _positions(self, items: Sequence[VerifyItem]) -> Any:
        """Return every row's absolute position, (n,) int64."""
        return np.concatenate([positions(item.length, item.tree.depths) for item in items])

    def _check(self, item: VerifyItem) -> None:
        tree, region, length = item.tree, item.region, item.length
        count = tree.num_nodes
        if region.start < 0 or region.start + region.capacity > self.num_slots:
            raise EngineError(f"region: {region}, expected within {self.num_slots} slots")
        if length < 0 or length + count > region.capacity:
            raise EngineError(
                f"verify: {length} committed tokens and {count} nodes, expected at most {region.capacity} slots"
            )
        if count > self._max_nodes and not tree.is_chain:
            raise EngineError(f"verify: a tree of {count} nodes, expected at most {self._max_nodes}")
        parents, depths = tree.parents, tree.depths
        is_tree = depths[0] == 0 and parents[0] == -1 and bool((parents[1:] < np.arange(1, count)).all())
        if not is_tree or parents[1:].min(initial=0) < 0 or (depths[1:] != depths[parents[1:]] + 1).any():
            raise EngineError("verify: parents and depths are no tree in topological order")
        low, high = int(tree.tokens.min()), int(tree.tokens.max())
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise EngineError(f"verify: token id {bad}, expected [0, {self.vocab_size - 1}]")
        if length + tree.max_depth >= len(self._rotations):
            raise EngineError(f"verify: position {length + tree.max_depth}, expected below {len(self._rotations)}")
