"""The target's edges: what it refuses, what it leaves alone, and what one broken row may spoil."""

import math
import random

import numpy as np
import pytest
import torch

from jetspec_engine.embedded import target as target_module
from jetspec_engine.embedded.precision import STRICT, strict_precision
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.errors import ConfigError, EngineError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.weights import load_weights
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.accept import greedy_ids
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import NUM_SLOTS, VARIANTS, plain_text, random_tree, tiny_folder, tiny_target
from support.devices import DEVICES

REGION = SlotRegion(start=64, capacity=256)


@pytest.fixture(scope="module")
def shared() -> DecoderTarget:
    return tiny_target("llama", torch.float32)


def item(ids: list[int], *, length: int = 0, region: SlotRegion = REGION, logits_from: int = 0) -> VerifyItem:
    return VerifyItem(region=region, length=length, tree=DraftTree.chain(ids), logits_from=logits_from)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model_type", VARIANTS)
def test_case_09_only_the_rows_own_slots_are_written(model_type: str, device: str) -> None:
    made = tiny_target(model_type, torch.float32, device=device)
    canary = 12345.0
    made.state.keys.fill_(canary)
    made.state.values.fill_(canary)
    made.verify([item(list(range(40)))])
    tree, path = random_tree(random.Random(0), list(range(16)), 112)
    assert tree.num_nodes == 128
    made.verify([VerifyItem(region=REGION, length=40, tree=tree)])
    made.commit(REGION, 40, path)
    for tensor in (made.state.keys, made.state.values):
        is_written = (tensor != canary).all(-1).all(0).all(0)
        assert is_written.nonzero().flatten().tolist() == list(range(REGION.start, REGION.start + 40 + 128))


@pytest.mark.parametrize("model_type", VARIANTS)
def test_R30_whatever_lies_in_slots_beyond_the_rows_is_never_seen(model_type: str) -> None:
    made = tiny_target(model_type, torch.float32)
    clean = made.verify([item([5, 6, 7]), item([9], region=SlotRegion(start=NUM_SLOTS - 1, capacity=1))])
    made.state.keys.fill_(math.nan)
    made.state.values.fill_(math.nan)
    again = made.verify([item([5, 6, 7]), item([9], region=SlotRegion(start=NUM_SLOTS - 1, capacity=1))])
    for one, other in zip(clean, again, strict=True):
        assert torch.equal(one.logits, other.logits)


def test_commit_equals_recompute(shared: DecoderTarget) -> None:
    text = plain_text(shared, seed=3, count=30)
    tree, path = random_tree(random.Random(5), text.ids[10:22], 20)
    shared.verify([item(text.ids[:10])])
    shared.verify([VerifyItem(region=REGION, length=10, tree=tree)])
    shared.commit(REGION, 10, path)
    other = SlotRegion(start=400, capacity=64)
    shared.verify([item(text.ids[:22], region=other)])
    for tensor in (shared.state.keys, shared.state.values):
        assert torch.equal(tensor[:, :, 64 : 64 + 22], tensor[:, :, 400 : 400 + 22])


def test_a_copied_prefix_goes_on_as_the_original(shared: DecoderTarget) -> None:
    text = plain_text(shared, seed=4, count=24)
    shared.verify([item(text.ids[:20])])
    other = SlotRegion(start=500, capacity=64)
    assert shared.copy_prefix(REGION, other, 15)
    (result,) = shared.verify([item(text.ids[15:24], length=15, region=other)])
    assert torch.equal(result.logits, text.logits[15:24])


@pytest.mark.parametrize("device", DEVICES)
def test_case_13_a_ragged_batch_equals_each_alone(device: str) -> None:
    shared = tiny_target("llama", torch.float32, device=device)
    texts = [plain_text(shared, seed=seed, count=count) for seed, count in ((1, 3), (2, 50), (3, 17), (4, 1))]
    regions = [SlotRegion(start=100 * place, capacity=60) for place in range(4)]
    items = [item(text.ids, region=region) for text, region in zip(texts, regions, strict=True)]
    for result, text in zip(shared.verify(items), texts, strict=True):
        assert torch.equal(result.logits, text.logits)
        assert torch.equal(result.hidden, text.hidden)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_case_15_equal_logits_are_equal_at_every_row_count(dtype: torch.dtype, device: str) -> None:
    folder = tiny_folder("llama", dtype)
    config = DecoderConfig.from_folder(folder)
    weights = load_weights(folder, config, dtype=dtype, device=device)
    embedding = weights["embed_tokens.weight"].clone()
    embedding[7] = embedding[300]
    weights["embed_tokens.weight"] = embedding
    made = DecoderTarget(config, weights, num_slots=NUM_SLOTS)
    for count in (1, 2, 3, 4, 7, 16, 33, 64, 100):
        (result,) = made.verify([item([(5 * i) % 320 for i in range(count)])])
        assert torch.equal(result.logits[:, 7], result.logits[:, 300])
        assert 300 not in greedy_ids(result.logits)


@pytest.mark.parametrize("device", DEVICES)
def test_case_14_R39_a_row_that_is_not_finite_spoils_itself_and_what_sees_it(device: str) -> None:
    folder = tiny_folder("qwen3", torch.float32)
    config = DecoderConfig.from_folder(folder)
    weights = load_weights(folder, config, dtype=torch.float32, device=device)
    for bad in (math.nan, math.inf):
        embedding = weights["embed_tokens.weight"].clone()
        embedding[5] = bad
        broken = {**weights, "embed_tokens.weight": embedding}
        made = DecoderTarget(config, broken, num_slots=NUM_SLOTS)
        text = plain_text_without_taps(made, [9, 8, 7])
        # Node 1 is the bad token, node 2 its child, nodes 3 and 4 the true path beside it.
        arrays = [np.array(values, dtype=np.int64) for values in ([9, 5, 1, 8, 7], [-1, 0, 1, 0, 3], [0, 1, 2, 1, 2])]
        tree = DraftTree(*arrays, np.zeros(5, np.float32))
        other = SlotRegion(start=400, capacity=64)
        first, second = made.verify([VerifyItem(region=REGION, length=0, tree=tree), item([9, 8, 7], region=other)])
        assert torch.equal(first.logits[[0, 3, 4]], text)
        assert torch.equal(second.logits, text)
        assert first.logits[1:3].isnan().any(-1).all()
        made.commit(REGION, 0, [0, 3, 4])
        (after,) = made.verify([item([4], length=3)])
        (wanted,) = made.verify([item([4], length=3, region=other)])
        assert torch.equal(after.logits, wanted.logits)


def plain_text_without_taps(made: DecoderTarget, ids: list[int]) -> torch.Tensor:
    region = SlotRegion(start=700, capacity=64)
    return torch.cat([made.verify([item([t], length=i, region=region)])[0].logits for i, t in enumerate(ids)])


def broken_tree(tokens: list[int], parents: list[int], depths: list[int]) -> DraftTree:
    arrays = [np.array(values, dtype=np.int64) for values in (tokens, parents, depths)]
    return DraftTree(*arrays, np.zeros(len(tokens), np.float32))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (item([1] * 10, length=250), "250 committed tokens and 10 nodes, expected at most 256 slots"),
        (item([1], length=-1), "-1 committed tokens"),
        (item([1], region=SlotRegion(start=1000, capacity=100)), "expected within 1024 slots"),
        (item([1, 320]), "token id 320, expected"),
        (item([-1, 2]), "token id -1, expected"),
        (VerifyItem(region=REGION, length=0, tree=broken_tree([1, 2, 3], [-1, 2, 0], [0, 1, 1])), "no tree"),
        (VerifyItem(region=REGION, length=0, tree=broken_tree([1, 2, 3], [-1, -1, 0], [0, 1, 1])), "no tree"),
        (VerifyItem(region=REGION, length=0, tree=broken_tree([1, 2, 3], [-1, 0, 0], [0, 1, 2])), "no tree"),
        (VerifyItem(region=REGION, length=0, tree=broken_tree([1, 2], [0, 0], [0, 1])), "no tree"),
        (
            VerifyItem(region=REGION, length=0, tree=random_tree(random.Random(0), [1, 2], 130)[0]),
            "a tree of 132 nodes, expected at most 128",
        ),
    ],
)
def test_R35_R39_what_does_not_fit_is_refused_and_writes_nothing(
    bad: VerifyItem, message: str, shared: DecoderTarget
) -> None:
    before = shared.state.keys[:, :, :NUM_SLOTS].clone()
    with pytest.raises(EngineError, match=message):
        shared.verify([item([1, 2], region=SlotRegion(start=600, capacity=64)), bad])
    after = shared.state.keys[:, :, :NUM_SLOTS]
    assert ((after == before) | (after.isnan() & before.isnan())).all()


@pytest.mark.parametrize("path", [[1], [0, 2, 1], [0, 0], [0, 256]])
def test_a_path_that_is_none_is_refused(path: list[int], shared: DecoderTarget) -> None:
    with pytest.raises(EngineError, match="expected ascending nodes from 0"):
        shared.commit(REGION, 0, path)


def test_a_tree_larger_than_the_fast_sums_take_is_verified_exactly() -> None:
    made = tiny_target("llama", torch.float32, max_nodes=200)
    text = plain_text(made, seed=6, count=60)
    made.verify([item(text.ids[:40])])
    tree, path = random_tree(random.Random(1), text.ids[40:52], 160)
    (result,) = made.verify([VerifyItem(region=REGION, length=40, tree=tree)])
    assert torch.equal(result.logits[path], text.logits[40:52])


def test_drafts_beyond_the_context_are_computed(shared: DecoderTarget) -> None:
    made = tiny_target("llama", torch.float32, max_seq_len=20)
    assert made.max_seq_len == 20
    (result,) = made.verify([item(list(range(36)))])
    assert result.logits.isfinite().all()


@pytest.mark.parametrize("options", [{"max_seq_len": 0}, {"max_seq_len": 513}, {"num_slots": 0}, {"taps": (2,)}])
def test_bad_numbers_are_refused(options: dict[str, object]) -> None:
    folder = tiny_folder("llama", torch.float32)
    config = DecoderConfig.from_folder(folder)
    with pytest.raises(ConfigError, match="expected an integer"):
        DecoderTarget(config, load_weights(folder, config, dtype=torch.float32), **{"num_slots": 64, **options})


def test_results_are_the_callers_to_change(shared: DecoderTarget) -> None:
    (first,) = shared.verify([item([1, 2, 3])])
    kept, hidden = first.logits.clone(), first.hidden.clone()
    with torch.inference_mode():
        first.logits[:] = -math.inf
        (second,) = shared.verify([item([1, 2, 3])])
    assert torch.equal(second.logits, kept)
    assert torch.equal(first.hidden, hidden)


def test_no_items_no_results(shared: DecoderTarget) -> None:
    assert shared.verify([]) == []


def test_what_was_chosen_is_said(shared: DecoderTarget) -> None:
    said = shared.describe()
    assert said["dtype"] == "float32"
    assert said["state_bytes"] == shared.state.num_bytes
    assert all(low <= high for low, high in said["row_policy"].values())


def test_R26_switches_are_scoped_to_our_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.backends.mkldnn.matmul
    made = tiny_target("llama", torch.float32)
    (wanted,) = made.verify([item([1, 2, 3, 4, 5])])
    found = cpu.fp32_precision
    seen = []
    forward = DecoderTarget._forward

    def spy(self: DecoderTarget, items: object) -> object:
        seen.append(cpu.fp32_precision)
        return forward(self, items)

    monkeypatch.setattr(target_module.DecoderTarget, "_forward", spy)
    try:
        cpu.fp32_precision = "bf16"
        (made_so,) = made.verify([item([1, 2, 3, 4, 5])])
        assert cpu.fp32_precision == "bf16"
        with pytest.raises(ZeroDivisionError), strict_precision():
            1 / 0
        assert cpu.fp32_precision == "bf16"
    finally:
        cpu.fp32_precision = found
    assert seen == [STRICT]
    assert torch.equal(made_so.logits, wanted.logits)
