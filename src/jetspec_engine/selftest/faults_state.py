"""Faults of what is kept between rounds: commits, pages, and the prefix cache."""

from collections.abc import Sequence
from typing import Any

import torch

from jetspec_engine.draft import context_cache
from jetspec_engine.embedded import pages, prefix_cache, state
from jetspec_engine.selftest.mutants import MutantTable, Patch

TABLE = MutantTable()


@TABLE.add("keys and values are moved from the slot before the accepted node's")
def kv_from_wrong_slot() -> Sequence[Patch]:
    keep = state.KeyValueState.keep_path

    def faulty(self: Any, region: Any, length: int, path: Any) -> None:
        keep(self, region, length, [node if node == place else node - 1 for place, node in enumerate(path)])

    return [(state.KeyValueState, "keep_path", faulty)]


@TABLE.add("an accepted path that needs moving is not moved")
def commit_skipped() -> Sequence[Patch]:
    return [(state.KeyValueState, "keep_path", lambda self, region, length, path: None)]


@TABLE.add("an accepted path is moved twice")
def commit_twice() -> Sequence[Patch]:
    keep = state.KeyValueState.keep_path

    def faulty(self: Any, region: Any, length: int, path: Any) -> None:
        keep(self, region, length, path)
        keep(self, region, length, path)

    return [(state.KeyValueState, "keep_path", faulty)]


def _move_some(layers: slice, names: Sequence[str]) -> Sequence[Patch]:
    def faulty(self: Any, region: Any, length: int, path: Any) -> None:
        root = region.start + length
        index = torch.tensor([root + node for node in path], device=self.keys.device)
        for name in names:
            tensor = getattr(self, name)[layers]
            tensor[:, :, root : root + len(index)] = tensor.index_select(2, index)

    return [(state.KeyValueState, "keep_path", faulty)]


@TABLE.add("a commit moves keys and leaves values")
def values_not_moved() -> Sequence[Patch]:
    return _move_some(slice(None), ("keys",))


@TABLE.add("a commit forgets the last layer")
def last_layer_not_moved() -> Sequence[Patch]:
    return _move_some(slice(-1), ("keys", "values"))


@TABLE.add("a page freed twice is lent twice")
def page_freed_twice() -> Sequence[Patch]:
    free = pages.PagePool.free

    def faulty(self: Any, region: Any) -> None:
        free(self, region)
        self._gaps.append((region.start // self.page_size, 1))

    return [(pages.PagePool, "free", faulty)]


@TABLE.add("a prefix that is cached already is never given back")
def page_leak() -> Sequence[Patch]:
    insert = prefix_cache.PrefixCache.insert

    def faulty(self: Any, tokens: Any, region: Any, draft_length: int) -> None:
        pool, self._pool = self._pool, _NoFree(self._pool)
        try:
            insert(self, tokens, region, draft_length)
        finally:
            self._pool = pool

    return [(prefix_cache.PrefixCache, "insert", faulty)]


class _NoFree:
    """A pool that takes nothing back."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def free(self, region: Any) -> None:
        """Forget the region."""


@TABLE.add("a cached prefix is reused without its draft state")
def prefix_without_draft_state() -> Sequence[Patch]:
    def faulty(self: Any, source: Any, destination: Any, length: int) -> bool:
        self._filled[destination.start] = length
        return True

    return [(context_cache.ContextCache, "copy", faulty)]


@TABLE.add("a cached prefix is reused one token too long")
def prefix_one_too_long() -> Sequence[Patch]:
    common = prefix_cache.common_length

    def faulty(a: Any, b: Any) -> int:
        return min(len(a), len(b), common(a, b) + 1)

    return [(prefix_cache, "common_length", faulty)]


@TABLE.add("a copied prefix has its values one slot off")
def prefix_values_off() -> Sequence[Patch]:
    def faulty(self: Any, source: Any, destination: Any, length: int) -> None:
        if source.start == destination.start:
            return
        begin, end = destination.start, destination.start + length
        self.keys[:, :, begin:end] = self.keys[:, :, source.start : source.start + length]
        self.values[:, :, begin + 1 : end] = self.values[:, :, source.start : source.start + length - 1]

    return [(state.KeyValueState, "copy", faulty)]
