"""Attention's pieces: who is visible by position, exactness of the sums, and silence of hidden keys."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.embedded import scores, sums
from jetspec_engine.embedded.attention import visibility
from jetspec_engine.embedded.scores import ExactScores, Float32Scores, NewRows, as_pairs, probe_scores
from jetspec_engine.embedded.sums import ExactSums, SequentialSums, SpanKeys, block_ranges, probe_sequential, tree_parts
from jetspec_engine.models.bounds import LayerBounds
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.mask import ancestor_mask
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import random_tree

MANY = settings(derandomize=True, deadline=None, max_examples=100)
BLOCK = 64
BOUNDS = LayerBounds(query=9.0, key=30.0, value=5.0)


def tree_of(parents: list[int]) -> DraftTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    arrays = [np.array(values, dtype=np.int64) for values in (range(len(parents)), parents, depths)]
    return DraftTree(*arrays, np.zeros(len(parents), np.float32))


trees = st.lists(st.integers(0, 1 << 20), max_size=40).map(
    lambda picks: tree_of([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
)


@given(tree=trees, length=st.integers(0, 90), window=st.one_of(st.none(), st.integers(1, 120)))
@MANY
def test_windows_intersect_the_tree_by_position(tree: DraftTree, length: int, window: int | None) -> None:
    item = VerifyItem(region=SlotRegion(start=0, capacity=999), length=length, tree=tree)
    oldest = 0 if window is None else max(0, length - window + 1)
    ancestors = ancestor_mask(tree.parents) if tree.num_nodes > 1 else None
    visible, from_key = visibility(item, window, oldest, ancestors)
    num_keys = length + tree.num_nodes - oldest
    made = np.ones((tree.num_nodes, num_keys), np.bool_)
    if visible is not None:
        made[:, from_key:] = visible
    for node in range(tree.num_nodes):
        chain = [node]
        while tree.parents[chain[-1]] >= 0:
            chain.append(int(tree.parents[chain[-1]]))
        position = length + int(tree.depths[node])
        for key in range(num_keys):
            place = oldest + key
            other = place if place < length else length + int(tree.depths[place - length])
            is_known = place < length or place - length in chain
            assert made[node, key] == (is_known and (window is None or position - other < window)), (node, key)


@given(length=st.integers(0, 200), count=st.integers(1, 200))
@MANY
def test_blocks_are_anchored_at_position_zero(length: int, count: int) -> None:
    ranges = block_ranges(length, length + count, BLOCK)
    assert [low for low, _ in ranges] == [length, *(high for _, high in ranges[:-1])]
    assert ranges[-1][1] == length + count
    assert all(low // BLOCK == (high - 1) // BLOCK and low < high for low, high in ranges)


@given(tree=trees, length=st.integers(0, 200))
@MANY
def test_a_node_counts_in_the_block_of_its_position_and_in_no_other(tree: DraftTree, length: int) -> None:
    first = length // BLOCK * BLOCK
    parts = tree_parts(tree.depths, length, first, BLOCK)
    counted = np.zeros(length + tree.num_nodes)
    for place, (low, high, counts) in enumerate(parts):
        assert high == length + tree.num_nodes
        held = np.ones(high - low) if counts is None else counts.numpy()
        counted[low:high] += held
        for key in np.flatnonzero(held) + low:
            position = key if key < length else length + int(tree.depths[key - length])
            assert position // BLOCK == length // BLOCK + place
    assert (counted[first:] == 1).all()
    assert (counted[:first] == 0).all()


def combined(
    arithmetic: ExactSums | SequentialSums, item: VerifyItem, weights: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Mean of values v (KV, T, d) under weights (KV, N, T), through the arithmetic, as (N, KV, 1, d) float64."""
    heads, count, num_keys = weights.shape
    stored = torch.empty(v.shape, dtype=arithmetic.value_dtype)
    arithmetic.store(0, v, stored)
    padded = torch.zeros(heads, arithmetic.padded_rows(count), num_keys)
    padded[:, :count] = weights
    out = torch.empty(count, heads, 1, v.shape[2], dtype=torch.float64)
    keys = SpanKeys(item=item, group=1, oldest=0, weights=padded, values=stored.unsqueeze(0))
    arithmetic.span(keys).combine(0, out)
    return out


@pytest.mark.parametrize(
    "arithmetic",
    [ExactSums([BOUNDS]), SequentialSums(16, 64), SequentialSums(16, 128)],
    ids=["exact", "blocks of 128", "blocks of 64"],
)
@given(seed=st.integers(0, 1 << 30), length=st.integers(0, 150), path=st.integers(1, 20), others=st.integers(0, 40))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_sums_do_not_depend_on_the_order_of_keys_or_on_hidden_ones(
    arithmetic: ExactSums | SequentialSums, seed: int, length: int, path: int, others: int
) -> None:
    if isinstance(arithmetic, SequentialSums) and not probe_sequential(2, 16, torch.get_num_threads()):
        pytest.skip("this machine's library sums in another way")
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    tree, nodes = random_tree(random.Random(seed), list(range(path)), others)
    chain = DraftTree.chain(range(path))
    spread = 2.0 ** (23 * torch.rand(2, 1, length + path, generator=generator))
    values = torch.randn(2, length + path, 16, generator=generator).clamp(-4, 4)
    alone = VerifyItem(region=SlotRegion(start=0, capacity=999), length=length, tree=chain)
    beside = VerifyItem(region=SlotRegion(start=0, capacity=999), length=length, tree=tree)
    mask = torch.from_numpy(ancestor_mask(chain.parents)).float()
    weights = spread.expand(2, path, -1).clone()
    weights[:, :, length:] *= mask
    # A row's largest weight is always about 2^23.
    weights[:, range(path), range(length, length + path)] = 2.0**23
    wanted = combined(arithmetic, alone, weights, values)
    places = [*range(length), *(length + node for node in nodes)]
    wide = torch.zeros(2, tree.num_nodes, length + tree.num_nodes)
    rows = torch.tensor(nodes)
    for row, node in enumerate(nodes):
        wide[:, node, places] = weights[:, row]
    noise = torch.from_numpy(rng.normal(size=(2, length + tree.num_nodes, 16)).astype(np.float32)).clamp(-4, 4)
    noise[:, places] = values
    # A hidden key's values may be anything at all.
    hidden = sorted(set(range(length, length + tree.num_nodes)) - set(places))
    noise[:, hidden[:1]] = math.nan
    noise[:, hidden[1:2]] = math.inf
    assert torch.equal(combined(arithmetic, beside, wide, noise)[rows], wanted)
    dense = (weights.double() @ values.double()) / weights.double().sum(-1, keepdim=True)
    torch.testing.assert_close(wanted[:, :, 0].transpose(0, 1), dense, atol=2e-5, rtol=2e-5)


def test_exact_sums_are_exact_at_their_bound() -> None:
    # The largest values and a flat softmax over many keys: the worst case for the 53 bits of float64.
    arithmetic, num_keys = ExactSums([BOUNDS]), 4096
    generator = torch.Generator().manual_seed(0)
    values = torch.full((1, num_keys, 16), BOUNDS.value) - torch.rand(1, num_keys, 16, generator=generator) * 1e-3
    weights = torch.full((1, 1, num_keys), 2.0**23) - torch.rand(1, 1, num_keys, generator=generator) * 1e3
    item = VerifyItem(region=SlotRegion(start=0, capacity=9999), length=num_keys - 1, tree=DraftTree.root_only(0))
    made = combined(arithmetic, item, weights, values)
    shuffle = torch.randperm(num_keys, generator=generator)
    assert torch.equal(combined(arithmetic, item, weights[:, :, shuffle], values[:, shuffle]), made)


@pytest.mark.parametrize("exact", [True, False])
@given(seed=st.integers(0, 1 << 30), count=st.integers(1, 40), num_keys=st.integers(1, 80))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_scores_do_not_depend_on_rows_or_keys_beside(exact: bool, seed: int, count: int, num_keys: int) -> None:
    if not exact and not probe_scores(2, 16, torch.get_num_threads()):
        pytest.skip("this machine's library multiplies in another way")
    arithmetic = ExactScores(16, [BOUNDS]) if exact else Float32Scores(16)
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(40, 2, 3, 16, generator=generator)
    k = torch.randn(80, 2, 16, generator=generator)
    turns = torch.polar(torch.ones(80, 8), torch.rand(80, 8, generator=generator) * 6)

    def score(rows: slice, keys: slice) -> torch.Tensor:
        num_rows, wanted_keys = len(range(40)[rows]), len(range(80)[keys])
        stored = torch.full((1, 2, 80 + arithmetic.min_keys, 16), math.nan, dtype=arithmetic.key_dtype)
        padded = arithmetic.padded_rows(num_rows * 3)
        for part, taken in ((k[keys], keys), (k[:num_rows], slice(0, num_rows))):
            place = 0 if taken is keys else 80
            if place + len(part) > stored.shape[2]:
                continue
            arithmetic.rows(
                NewRows(
                    count=len(part),
                    group=1,
                    padded_rows=arithmetic.padded_rows(len(part)),
                    keys=stored[:, :, place : place + len(part)],
                    rotations=turns[taken],
                )
            ).store(0, as_pairs(part.unsqueeze(2)).transpose(0, 1), as_pairs(part).transpose(0, 1))
        writer = arithmetic.rows(
            NewRows(
                count=num_rows,
                group=3,
                padded_rows=padded,
                keys=torch.empty(1, 2, num_rows, 16, dtype=arithmetic.key_dtype),
                rotations=turns[:40][rows],
            )
        )
        queries = writer.store(0, as_pairs(q[rows]).transpose(0, 1), as_pairs(k[:num_rows]).transpose(0, 1))
        scored = max(wanted_keys, arithmetic.min_keys)
        out = torch.empty(2, padded, scored)
        arithmetic.score(0, queries, stored[0, :, :scored].mT, out)
        return out[:, : num_rows * 3, :wanted_keys].reshape(2, num_rows, 3, wanted_keys)

    whole = score(slice(0, 40), slice(0, 80))
    first = seed % (41 - count)
    part = score(slice(first, first + count), slice(0, num_keys))
    assert torch.equal(part, whole[:, first : first + count, :, :num_keys])
    turned_q = torch.view_as_real(as_pairs(q) * turns[:40, None, None]).flatten(-2).double()
    turned_k = torch.view_as_real(as_pairs(k) * turns[:, None]).flatten(-2).double()
    dense = torch.einsum("nhgd,mhd->hngm", turned_q, turned_k) / 4
    torch.testing.assert_close(whole.double(), dense, atol=2e-5, rtol=2e-5)


@given(seed=st.integers(0, 1 << 30), first=st.integers(0, 500), count=st.integers(1, 200), offset=st.integers(0, 17))
@MANY
def test_exp_of_an_element_does_not_depend_on_its_place(seed: int, first: int, count: int, offset: int) -> None:
    x = torch.randn(700, generator=torch.Generator().manual_seed(seed)) * 8
    moved = torch.empty(count + offset)[offset:]
    moved.copy_(x[first : first + count]).exp_()
    assert torch.equal(moved, x.exp()[first : first + count])


def test_probes_notice_a_library_with_other_habits(monkeypatch: pytest.MonkeyPatch) -> None:
    bmm = torch.bmm

    def other_when_small(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.shape[1] > 20:
            return bmm(a, b)
        half = a.shape[2] // 2
        return bmm(a[:, :, :half], b[:, :half]) + bmm(a[:, :, half:], b[:, half:])

    monkeypatch.setattr(torch, "bmm", other_when_small)
    assert not scores.probe_scores.__wrapped__(2, 16, 1)
    assert not sums.probe_sequential.__wrapped__(2, 16, 1)
