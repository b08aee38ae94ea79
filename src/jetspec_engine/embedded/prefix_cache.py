"""Finished sequences kept as prefixes for later prompts: one cached region each, least recently used goes first.

A cached region remembers how many of its positions hold draft state too (``draft_length``), because a prefix without
draft state would cost acceptance: sequences decoded plainly never met the drafter, and a request that drafts reuses
only positions the drafter has seen. Knows nothing of requests in flight; whoever takes a region owns it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jetspec_engine.protocol import SlotRegion


class RegionPool(Protocol):
    """Where regions come from.

    Attributes:
        num_pages: pages in all.
        num_free_pages: pages not lent.
    """

    @property
    def num_pages(self) -> int: ...

    @property
    def num_free_pages(self) -> int: ...

    def allocate(self, capacity: int) -> SlotRegion | None:
        """Lend a region of at least ``capacity`` slots, or None while there is no room."""
        ...

    def free(self, region: SlotRegion) -> None:
        """Take a region back."""
        ...

    def count_pages(self, region: SlotRegion) -> int:
        """Return how many pages a region holds."""
        ...


class PrefixStates(Protocol):
    """Something with state per position that can be copied: a target or a drafter."""

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool: ...


@dataclass(kw_only=True, eq=False)
class CachedPrefix:
    """A region nobody runs in, the ids it holds, and how many leading positions hold draft state."""

    tokens: NDArray[np.int64]
    region: SlotRegion
    draft_length: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a new sequence goes: ``num_cached`` positions are there already, ``draft_length`` of them drafted."""

    region: SlotRegion
    num_cached: int = 0
    draft_length: int = 0


class PrefixCache:
    """Lends regions, filled with the longest cached prefix there is.

    Args:
        pool: lends empty regions.
        target: its state is cut or copied; False from ``copy_prefix`` means no reuse there.
        drafter: the same for draft state.
        max_pages: most pages to keep, but the last finished sequence always stays; None for no limit but the pool's.
    """

    def __init__(
        self, pool: RegionPool, target: PrefixStates, drafter: PrefixStates, *, max_pages: int | None = None
    ) -> None:
        self._max_pages = pool.num_pages if max_pages is None else max_pages
        self._pool = pool
        self._target = target
        self._drafter = drafter
        self._entries: list[CachedPrefix] = []  # least recently used first

    @property
    def num_pages(self) -> int:
        """Pages held by cached prefixes."""
        return sum(self._pool.count_pages(entry.region) for entry in tuple(self._entries))

    def place(self, prompt: Sequence[int], capacity: int, *, is_drafting: bool) -> Placement | None:
        """Find a region for a prompt, evicting cached prefixes as needed.

        A cached sequence that the prompt continues is taken over; one that it only shares a beginning with is copied,
        so that both stay, or taken over when there is no room for a copy. The prompt's last token is never reused:
        its logits are wanted.

        Args:
            prompt: the ids.
            capacity: slots needed.
            is_drafting: whether the sequence will draft, and so needs draft state.

        Returns:
            The placement, or None when running sequences hold the room.
        """
        entry, length = self._longest(np.asarray(prompt[:-1], dtype=np.int64), is_drafting=is_drafting)
        if entry is None:
            return self._empty(capacity)
        has_room = entry.region.capacity >= capacity
        if has_room and length == len(entry.tokens):
            return self._take_over(entry, length)
        self._touch(entry)
        region = self.allocate(capacity, keep=entry)
        if region is not None:
            return self._copy(entry, region, length, is_drafting=is_drafting)
        if has_room and self._carry(entry, entry.region, length):
            return self._take_over(entry, length)
        return self._empty(capacity)

    def allocate(self, capacity: int, *, keep: CachedPrefix | None = None) -> SlotRegion | None:
        """Lend an empty region, evicting the least recently used prefixes (all but ``keep``) until there is room."""
        while True:
            region = self._pool.allocate(capacity)
            if region is not None:
                return region
            victim = next((entry for entry in self._entries if entry is not keep), None)
            if victim is None:
                return None
            self._drop(victim)

    def free(self, region: SlotRegion) -> None:
        """Give a region back without keeping what it holds."""
        self._pool.free(region)

    def insert(self, tokens: Sequence[int], region: SlotRegion, draft_length: int) -> None:
        """Keep a finished sequence's region, unless another already holds all of it; drop those it makes redundant."""
        ids = np.asarray(tokens, dtype=np.int64)
        if not len(ids) or any(_covers(entry.tokens, entry.draft_length, ids, draft_length) for entry in self._entries):
            self._pool.free(region)
            return
        for entry in [e for e in self._entries if _covers(ids, draft_length, e.tokens, e.draft_length)]:
            self._drop(entry)
        self._entries.append(CachedPrefix(tokens=ids, region=region, draft_length=draft_length))
        while self.num_pages > self._max_pages and len(self._entries) > 1:
            self._drop(self._entries[0])

    def flush(self) -> None:
        """Drop every cached prefix."""
        for entry in tuple(self._entries):
            self._drop(entry)

    def _longest(self, prompt: NDArray[np.int64], *, is_drafting: bool) -> tuple[CachedPrefix | None, int]:
        best: CachedPrefix | None = None
        best_length = 0
        for entry in self._entries:
            length = common_length(entry.tokens, prompt)
            if is_drafting:
                length = min(length, entry.draft_length)
            if length > best_length:
                best, best_length = entry, length
        return best, best_length

    def _take_over(self, entry: CachedPrefix, length: int) -> Placement:
        self._entries.remove(entry)
        draft_length = min(entry.draft_length, length)
        return Placement(region=entry.region, num_cached=length, draft_length=draft_length)

    def _copy(self, entry: CachedPrefix, region: SlotRegion, length: int, *, is_drafting: bool) -> Placement:
        # A plain sequence never shows its prefix to the drafter, so draft state would be copied for nothing.
        try:
            is_kept = self._target.copy_prefix(entry.region, region, length)
            is_kept = is_kept and (not is_drafting or self._drafter.copy_prefix(entry.region, region, length))
        except Exception:
            self._pool.free(region)
            raise
        if not is_kept:
            return Placement(region=region)
        return Placement(region=region, num_cached=length, draft_length=length if is_drafting else 0)

    def _carry(self, entry: CachedPrefix, region: SlotRegion, length: int) -> bool:
        """Cut a cached region in place: a copy onto itself says whether the state can be cut there."""
        is_cut = self._target.copy_prefix(entry.region, region, length)
        return is_cut and (entry.draft_length == 0 or self._drafter.copy_prefix(entry.region, region, length))

    def _empty(self, capacity: int) -> Placement | None:
        region = self.allocate(capacity)
        return None if region is None else Placement(region=region)

    def _touch(self, entry: CachedPrefix) -> None:
        self._entries.remove(entry)
        self._entries.append(entry)

    def _drop(self, entry: CachedPrefix) -> None:
        self._entries.remove(entry)
        self._pool.free(entry.region)


def common_length(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Return how many leading ids two arrays share."""
    length = min(len(a), len(b))
    differs = np.nonzero(a[:length] != b[:length])[0]
    return int(differs[0]) if len(differs) else length


def _covers(tokens: NDArray[Any], draft_length: int, others: NDArray[Any], other_draft_length: int) -> bool:
    """Say whether the first sequence holds all of the other's positions and draft state."""
    return draft_length >= other_draft_length and common_length(tokens, others) == len(others)
