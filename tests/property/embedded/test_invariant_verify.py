"""The invariant verify: bitwise the same numbers under random rounds, siblings, row counts and company.

What plain decoding computes one token at a time is the standard, for every family and on every device. Each property
has partners below: targets broken in the ways that others' were, which must fail it; what only recurrent layers and
experts can get wrong is in ``test_invariant_hybrid``.
"""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_engine.embedded import attention, attention_choice, layouts, linear, rows, sums
from jetspec_engine.embedded.rows import RowPolicy
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import (
    DTYPES,
    HYBRIDS,
    VARIANTS,
    assert_broken,
    assert_invariant,
    assert_same_bits,
    loaded,
    plain_text,
    tiny_target,
)
from support.devices import DEVICES
from support.seeded_faults import put_in_force

FAMILIES = (*VARIANTS, *HYBRIDS)
FEW = settings(derandomize=True, deadline=None, max_examples=8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@given(seed=st.integers(0, 1 << 30), num_texts=st.integers(1, 3))
@FEW
def test_R12_R13_R20_bits_do_not_depend_on_rounds_siblings_rows_or_company(
    family: str, dtype: torch.dtype, device: str, seed: int, num_texts: int
) -> None:
    made, texts = loaded(family, dtype, device)
    rng = random.Random(seed)
    assert_invariant(made, rng.sample(texts, num_texts), rng)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@given(seed=st.integers(0, 1 << 30))
@FEW
def test_R13_prefill_in_any_chunks_equals_plain_decoding(
    family: str, dtype: torch.dtype, device: str, seed: int
) -> None:
    made, (text, *_) = loaded(family, dtype, device)
    rng, total = random.Random(seed), len(text.ids)
    region = SlotRegion(start=rng.randrange(64), capacity=total)
    length = 0
    while length < total:
        chunk = text.ids[length : length + rng.choice((1, 2, 7, 16, 33, 64, total))]
        first = rng.choice((0, len(chunk) - 1, len(chunk)))
        tree = DraftTree.chain(chunk)
        (result,) = made.verify([VerifyItem(region=region, length=length, tree=tree, logits_from=first)])
        end = length + len(chunk)
        assert result.logits.shape == (len(chunk) - first, made.vocab_size)
        assert torch.equal(result.logits, text.logits[length + first : end])
        assert torch.equal(result.hidden, text.hidden[length:end])
        # A part of a chain is committed too: its beginning, by the path that trees take.
        count = rng.choice((len(chunk), rng.randrange(1, len(chunk) + 1)))
        made.commit(region, length, range(count))
        length += count


@pytest.mark.parametrize("model_type", VARIANTS)
def test_a_long_chain_cut_to_the_cache_keeps_its_bits(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, texts = loaded(model_type, torch.float32)
    monkeypatch.setattr(attention, "MAX_SCORES", 1)
    pieces = attention.cut_chain(
        VerifyItem(region=SlotRegion(start=0, capacity=200), length=3, tree=DraftTree.chain(range(90))),
        attention.HeadShape(num_kv_heads=1, group=1, head_dim=2),
    )
    assert [piece.tree.num_nodes for piece in pieces] == [16, 16, 16, 16, 16, 10]
    region = SlotRegion(start=5, capacity=100)
    for first, last in ((0, 3), (3, 93), (93, 100)):
        tree = DraftTree.chain(texts[1].ids[first:last])
        (result,) = made.verify([VerifyItem(region=region, length=first, tree=tree)])
        assert_same_bits(result, range(last - first), texts[1], first)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_case_08_a_deep_path_of_last_children_only(dtype: torch.dtype, device: str) -> None:
    made, texts = loaded("llama", dtype, device)
    region, ids, depth = SlotRegion(start=3, capacity=130), texts[0].ids, 15
    for length in range(0, 80, depth):
        # Every node of the path has seven elder siblings, and its own children come last of all.
        path_ids = ids[length : length + depth]
        tokens, parents, path = [int(path_ids[0])], [-1], [0]
        for token in path_ids[1:]:
            tokens += [(int(token) + 1 + i) % made.vocab_size for i in range(7)] + [int(token)]
            parents += [path[-1]] * 8
            path.append(len(tokens) - 1)
        depths = [0, *(1 + (node - 1) // 8 for node in range(1, len(tokens)))]
        arrays = [np.array(values, dtype=np.int64) for values in (tokens, parents, depths)]
        tree = DraftTree(*arrays, np.zeros(len(tokens), np.float32))
        wide = SlotRegion(start=region.start, capacity=length + len(tokens))
        (result,) = made.verify([VerifyItem(region=wide, length=length, tree=tree)])
        assert_same_bits(result, path, texts[0], length)
        made.commit(wide, length, path)


def exact_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "probe_scores", lambda *_: False)
    monkeypatch.setattr(attention_choice, "probe_sequential", lambda *_: False)


def plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "choose_layout", lambda *_: layouts.PLAIN)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", [*VARIANTS, "qwen3-next"])
@pytest.mark.parametrize("other_way", [exact_everywhere, plain_layers])
def test_the_ways_of_other_machines_are_invariant_too(
    family: str, dtype: torch.dtype, other_way: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_way(monkeypatch)
    made = tiny_target(family, dtype)
    texts = [plain_text(made, seed=seed, count=80) for seed in range(2)]
    for seed in range(3):
        assert_invariant(made, texts, random.Random(seed))


# ------------------------------------------------------------------------------- partners that must fail


# Plain decoding and chains stay right under each of these: only trees, commits and company show them.
SEEDED_FAULTS = (
    "position-by-index", "sibling-visible", "causal-by-index", "parent-hidden", "commit-skipped", "values-not-moved",
    "mask-of-another-request", "window-by-index",
)  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fault", SEEDED_FAULTS)
def test_case_07_seeded_faults_break_the_bits(fault: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_target("qwen3", torch.float32, device=device)
    texts = [plain_text(made, seed=seed, count=100) for seed in range(2)]
    assert_invariant(made, texts, random.Random(0))
    put_in_force(fault, monkeypatch)
    assert_broken(made, texts)


def blocks_by_node_index(monkeypatch: pytest.MonkeyPatch) -> None:
    by_depth = sums.tree_parts
    monkeypatch.setattr(sums, "tree_parts", lambda depths, *rest: by_depth(np.arange(len(depths)), *rest))


def block_of_the_prefix_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_early = sums.block_ranges
    monkeypatch.setattr(
        sums, "block_ranges", lambda low, high, block: [(low, high)] if high - low < 80 else cut_early(low, high, block)
    )


@pytest.mark.parametrize("mutant", [blocks_by_node_index, block_of_the_prefix_goes_on])
def test_case_07_sums_cut_elsewhere_break_the_bits(mutant: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    # Sums in blocks are a way of this machine's; elsewhere there is no cut to move.
    if not sums.probe_sequential(2, 32, torch.get_num_threads()):
        pytest.skip("no sums in blocks here")
    mutant(monkeypatch)
    made = tiny_target("qwen3", torch.float32)
    assert_broken(made, [plain_text(made, seed=seed, count=100) for seed in range(2)])


def test_a_row_policy_that_allows_everything_breaks_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    # Plain float32 layers, whose kernels for one to three rows differ, without the policy that pads them.
    plain_layers(monkeypatch)
    linear.find_policy.cache_clear()
    monkeypatch.setattr(linear, "probe_rows", lambda *_: RowPolicy(min_rows=1, max_rows=rows.MAX_ROWS))
    made = tiny_target("llama", torch.float32)
    linear.find_policy.cache_clear()
    texts = [plain_text(made, seed=0, count=40)]
    with pytest.raises(AssertionError, match="positions"):
        assert_invariant(made, texts, random.Random(0))
