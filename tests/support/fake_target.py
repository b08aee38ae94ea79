"""Doubles for the engine's tests: a target, a drafter and a pool that notice every bookkeeping error.

``FakeTarget`` decodes a hash of the whole prefix and keeps one token and one position per slot, so a wrong commit, a
wrong slot, a wrong parent or stale state either raises at once or changes the text. Its logits are small integers with
many exact ties. ``FakeDrafter`` keeps its own slots and checks every hidden state it is given.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from jetspec_engine.protocol import Candidates, SlotRegion, VerifyItem, VerifyResult

VOCAB_SIZE = 40
EOS_ID = 2
MASK64 = (1 << 64) - 1
PIECES = [b"<s>", b"<pad>", b"</s>", *(bytes([c]) for c in b"abcdefgh .,"), b" th", b"e ", b"ab", b"bc", b"abc", b"\n"]
PIECES += [b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80", "é".encode(), "日".encode(), b"\xe6\x97", b"\xa5"]
PIECES += [b"x%d" % i for i in range(VOCAB_SIZE - len(PIECES))]


def state_after(state: int, token: int, position: int) -> int:
    """Return the state of a prefix that was extended by a token at a position."""
    mixed = (state ^ (token + 1) * 0x9E3779B97F4A7C15 ^ (position + 1) * 0xC2B2AE3D27D4EB4F) & MASK64
    mixed = (mixed ^ mixed >> 31) * 0xBF58476D1CE4E5B9 & MASK64
    return mixed ^ mixed >> 27


def state_of(ids: Sequence[int]) -> int:
    """Return the state of a whole prefix."""
    state = 1
    for position, token in enumerate(ids):
        state = state_after(state, int(token), position)
    return state


def logits_of(state: int) -> np.ndarray:
    """Return (VOCAB_SIZE,) float32 logits: integers 0..23, often tied at the top."""
    keys = np.arange(1, VOCAB_SIZE + 1, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93)
    mixed = (np.uint64(state) ^ keys) * np.uint64(0x94D049BB133111EB)
    return ((mixed >> np.uint64(40)) % np.uint64(24)).astype(np.float32)


def next_id(ids: Sequence[int]) -> int:
    """Return the target's greedy choice after a prefix, the lower id at a tie."""
    return int(np.argmax(logits_of(state_of(ids))))


class FakeTarget:
    """A ``TargetModel`` over one hash. ``is_poisoned(first_id, position)`` makes that node's logits NaN."""

    vocab_size = VOCAB_SIZE
    hidden_size = 3

    def __init__(self, *, num_slots: int = 4096, max_seq_len: int = 512, can_cut: bool = True) -> None:
        self.num_slots = num_slots
        self.max_seq_len = max_seq_len
        self.can_cut = can_cut
        self.slot_ids = np.full(num_slots, -1, dtype=np.int64)
        self.slot_positions = np.full(num_slots, -1, dtype=np.int64)
        self.pending: dict[int, VerifyItem] = {}
        self.is_poisoned: Callable[[int, int], bool] = lambda first_id, position: False
        self.before_verify: Callable[[Sequence[VerifyItem]], None] = lambda items: None
        self.num_forwards = 0
        self.largest_batch = 0

    def verify(self, items: Sequence[VerifyItem]) -> list[VerifyResult]:
        self.before_verify(items)
        self.num_forwards += 1
        self.largest_batch = max(self.largest_batch, len(items))
        starts = sorted((item.region.start, item.region.start + item.region.capacity) for item in items)
        assert all(a[1] <= b[0] for a, b in pairwise(starts)), "regions overlap"
        return [self._verify_item(item) for item in items]

    def committed(self, region: SlotRegion, length: int) -> np.ndarray:
        """Return the ids of the first positions; raises when one of them was never committed."""
        slots = slice(region.start, region.start + length)
        assert (self.slot_positions[slots] == np.arange(length)).all(), f"positions of the first {length} slots"
        assert (self.slot_ids[slots] >= 0).all()
        return self.slot_ids[slots]

    def _verify_item(self, item: VerifyItem) -> VerifyResult:
        region, tree, length = item.region, item.tree, item.length
        tree.validate()
        count = tree.num_nodes
        assert region.start >= 0
        assert region.start + region.capacity <= self.num_slots
        assert length + count <= region.capacity, f"{length} + {count} rows in {region.capacity} slots"
        assert length + tree.max_depth < self.max_seq_len, "position beyond the context"
        assert tree.tokens.max() < VOCAB_SIZE
        root_state = state_of(self.committed(region, length))
        states, logits = [], np.zeros((count, VOCAB_SIZE), dtype=np.float32)
        first_id = int(self.slot_ids[region.start]) if length else int(tree.tokens[0])
        for node in range(count):
            parent, position = int(tree.parents[node]), length + int(tree.depths[node])
            states.append(state_after(states[parent] if parent >= 0 else root_state, int(tree.tokens[node]), position))
            logits[node] = np.nan if self.is_poisoned(first_id, position) else logits_of(states[-1])
        slots = slice(region.start + length, region.start + length + count)
        self.slot_ids[slots] = tree.tokens
        self.slot_positions[slots] = length + tree.depths
        self.pending[region.start] = item
        hidden = np.stack([tree.tokens, length + tree.depths, [state % (1 << 20) for state in states]], axis=1)
        return VerifyResult(
            logits=torch.from_numpy(logits[item.logits_from :]), hidden=torch.from_numpy(hidden.astype(np.float32))
        )

    def commit(self, region: SlotRegion, length: int, path: Sequence[int]) -> None:
        item = self.pending.pop(region.start)
        assert item.length == length
        assert item.region == region
        path = list(path)
        assert [-1, *path[:-1]] == item.tree.parents[path].tolist(), "the path is no path"
        base = region.start + length
        ids, positions = self.slot_ids[[base + node for node in path]], self.slot_positions[[base + n for n in path]]
        self.slot_ids[base : base + item.tree.num_nodes] = -1
        self.slot_ids[base : base + len(path)] = ids
        self.slot_positions[base : base + len(path)] = positions

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        if not self.can_cut:
            return False
        ids = self.committed(source, length).copy()
        self.slot_ids[destination.start : destination.start + length] = ids
        self.slot_positions[destination.start : destination.start + length] = np.arange(length)
        return True


class FakeSession:
    def __init__(self, drafter: "FakeDrafter", region: SlotRegion) -> None:
        self.drafter, self.region, self.length = drafter, region, 0
        drafter.open_sessions.add(self)

    def close(self) -> None:
        self.drafter.open_sessions.remove(self)


class FakeDrafter:
    """A drafter that knows the target's mind and uses it as ``mode`` says.

    right: always right at rank 0. wrong: never right. last: right at the last rank. random: noise.
    mixed: at each depth right at a rank drawn from the prefix, or not at all. unusable: every logprob is -inf or NaN.
    """

    needs_hidden = True

    def __init__(self, mode: str = "mixed", *, depth: int = 5, num_slots: int = 4096, seed: int = 0) -> None:
        self.mode, self.depth, self.seed = mode, depth, seed
        self.slot_ids = np.full(num_slots, -1, dtype=np.int64)
        self.open_sessions: set[FakeSession] = set()
        self.before_propose: Callable[[], None] = lambda: None
        self.num_calls = 0

    def open(self, request: Any, region: SlotRegion) -> FakeSession:
        self.num_calls += 1
        return FakeSession(self, region)

    def ids(self, session: FakeSession) -> list[int]:
        ids = self.slot_ids[session.region.start : session.region.start + session.length].tolist()
        assert min(ids, default=0) >= 0
        return ids

    def extend(self, session: FakeSession, token_ids: Sequence[int], hidden: torch.Tensor) -> None:
        self.num_calls += 1
        first = session.length
        prefix = self.ids(session)
        for index, (token, row) in enumerate(zip(token_ids, hidden.tolist(), strict=True)):
            prefix.append(int(token))
            expected = [token, first + index, state_of(prefix) % (1 << 20)]
            assert row == expected, f"hidden {row}, expected {expected}"
        begin = session.region.start + first
        self.slot_ids[begin : begin + len(token_ids)] = token_ids
        session.length += len(token_ids)

    def propose(self, sessions: Sequence[FakeSession], anchors: Sequence[int], width: int) -> list[Candidates]:
        self.num_calls += 1
        self.before_propose()
        return [self._offer([*self.ids(s), anchor], width) for s, anchor in zip(sessions, anchors, strict=True)]

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        ids = self.slot_ids[source.start : source.start + length].copy()
        assert (ids >= 0).all(), "a prefix without draft state was copied"
        self.slot_ids[destination.start : destination.start + length] = ids
        return True

    def adopt_prefix(self, session: FakeSession, token_ids: Sequence[int]) -> None:
        count = len(token_ids)
        assert session.length == 0
        assert self.slot_ids[session.region.start : session.region.start + count].tolist() == list(token_ids)
        session.length = count

    def _offer(self, prefix: list[int], width: int) -> Candidates:
        rng = np.random.default_rng([self.seed, state_of(prefix) % (1 << 32)])
        prefix = list(prefix)
        tokens = np.zeros((self.depth, width), dtype=np.int64)
        for depth in range(self.depth):
            truth = next_id(prefix)
            others = rng.permutation([t for t in range(VOCAB_SIZE) if t != truth])
            row = [int(t) for t in others[:width]]
            rank = self._rank_of_truth(rng, width)
            if rank is not None:
                row[rank] = truth
            tokens[depth] = row
            prefix.append(truth)
        logprobs = np.sort(np.log(rng.uniform(0.01, 0.9, size=(self.depth, width))), axis=1)[:, ::-1]
        if self.mode == "last":  # flat, so that a small budget reaches the last rank at every depth
            logprobs = np.repeat(-0.01 * np.arange(1, width + 1)[None], self.depth, axis=0)
        if self.mode == "unusable":
            logprobs = np.where(rng.uniform(size=logprobs.shape) < 0.5, -np.inf, np.nan)
        return Candidates(tokens=torch.from_numpy(tokens), logprobs=torch.from_numpy(logprobs.astype(np.float32)))

    def _rank_of_truth(self, rng: np.random.Generator, width: int) -> int | None:
        if self.mode == "right":
            return 0
        if self.mode == "last":
            return width - 1
        if self.mode == "mixed":
            rank = int(rng.integers(0, width + 1))
            return rank if rank < width else None
        return None


class FakePool:
    """A first-fit region allocator that checks what it is given back."""

    def __init__(self, num_slots: int = 4096, page_size: int = 16) -> None:
        self.page_size = page_size
        self.num_pages = num_slots // page_size
        self.lent: dict[int, int] = {}

    @property
    def num_free_pages(self) -> int:
        return self.num_pages - sum(self.lent.values())

    def allocate(self, capacity: int) -> SlotRegion | None:
        pages = -(-capacity // self.page_size)
        start = 0
        for begin, count in sorted(self.lent.items()):
            if begin - start >= pages:
                break
            start = begin + count
        if start + pages > self.num_pages:
            return None
        self.lent[start] = pages
        return SlotRegion(start=start * self.page_size, capacity=pages * self.page_size)

    def free(self, region: SlotRegion) -> None:
        assert self.lent.pop(region.start // self.page_size) == self.count_pages(region), "freed twice or resized"

    def count_pages(self, region: SlotRegion) -> int:
        return region.capacity // self.page_size


class FakeTokenizer:
    """Bytes by id; some ids are parts of a UTF-8 character, and ids 0..2 are special."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = (EOS_ID,)
    bos_token_id = 0

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        return b"" if token_id <= EOS_ID and skip_special_tokens else PIECES[token_id]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        pieces = [self.token_bytes(token, skip_special_tokens=skip_special_tokens) for token in token_ids]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    encode_rendered = encode

    def render_chat(self, messages: Any) -> str:
        raise NotImplementedError
