"""The recurrent states themselves: once a round, never cut, nothing left behind; and what they take in memory."""

from dataclasses import replace

import pytest
import torch

from jetspec_engine.embedded import delta_memory, delta_state
from jetspec_engine.embedded.delta_memory import PUBLISHED_SHAPE, TreeStates, sequence_bytes, tree_bytes
from jetspec_engine.embedded.delta_plan import make_plan
from jetspec_engine.embedded.delta_state import DeltaState
from jetspec_engine.embedded.pages import PagePool
from jetspec_engine.embedded.sequence_pool import SequencePool
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.errors import EngineError
from jetspec_engine.models.layer_kinds import DeltaShape
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.record import DraftTree
from support.decoder_cases import tiny_target

HERE, THERE = SlotRegion(start=0, capacity=64), SlotRegion(start=200, capacity=64)
MIB = 1 << 20


@pytest.fixture
def made() -> DecoderTarget:
    return tiny_target("qwen3.5", torch.float32)


def verify(made: DecoderTarget, ids: list[int], length: int = 0, region: SlotRegion = HERE) -> torch.Tensor:
    (result,) = made.verify([VerifyItem(region=region, length=length, tree=DraftTree.chain(ids))])
    return result.logits


def test_a_round_is_committed_once_and_at_its_own_length(made: DecoderTarget) -> None:
    with pytest.raises(EngineError, match="no round of the sequence waits at length 0"):
        made.commit(HERE, 0, [0])
    verify(made, [5, 6, 7])
    made.commit(HERE, 0, [0, 1])
    with pytest.raises(EngineError, match="no round of the sequence waits at length 2"):
        made.commit(HERE, 2, [0])
    verify(made, [8], length=2)
    with pytest.raises(EngineError, match="no round of the sequence waits at length 1"):
        made.commit(HERE, 1, [0])


def test_a_state_cannot_be_cut(made: DecoderTarget) -> None:
    verify(made, [5, 6, 7])
    made.commit(HERE, 0, [0, 1, 2])
    for length in (1, 2, 4):
        with pytest.raises(EngineError, match=f"recurrent state: 3 tokens, expected one after {length} tokens"):
            verify(made, [8], length=length)
        assert made.copy_prefix(HERE, THERE, length) is False
    with pytest.raises(EngineError, match="recurrent state: none, expected one after 3 tokens"):
        verify(made, [8], length=3, region=THERE)
    assert made.copy_prefix(HERE, THERE, 3) is True
    assert torch.equal(verify(made, [8], length=3, region=THERE), verify(made, [8], length=3))


def test_a_round_that_is_never_committed_leaves_nothing(made: DecoderTarget) -> None:
    verify(made, [5, 6, 7])
    made.commit(HERE, 0, [0, 1, 2])
    wanted = verify(made, [8, 9], length=3)
    for other in ([1, 2, 3], [4]):
        verify(made, other, length=3)
    assert torch.equal(verify(made, [8, 9], length=3), wanted)
    made.commit(HERE, 3, [])
    assert torch.equal(verify(made, [8, 9], length=3), wanted)


def test_a_region_that_is_used_again_begins_empty(made: DecoderTarget) -> None:
    wanted = verify(made, [5, 6])
    made.commit(HERE, 0, [0, 1])
    assert torch.equal(verify(made, [5, 6]), wanted)
    made.forget(HERE)
    assert made.delta is not None
    assert made.delta.num_sequences == 0
    with pytest.raises(EngineError, match="recurrent state: none"):
        verify(made, [7], length=2)


def test_R39_a_node_that_is_not_finite_spoils_its_own_descendants_only(made: DecoderTarget) -> None:
    assert made.delta is not None
    shape = made.delta.shape
    states = torch.zeros(2, shape.num_value_heads, shape.key_dim, shape.value_dim)
    k = torch.ones(2, shape.num_value_heads, shape.key_dim)
    v = torch.ones(2, shape.num_value_heads, shape.value_dim)
    gates = torch.full((2, shape.num_value_heads), 0.5)
    v[0] = torch.nan
    delta_state.update_(states, k, v, gates, gates)
    assert torch.isnan(states[0]).all()
    assert torch.isfinite(states[1]).all()


def test_a_plan_goes_by_depth_over_all_items() -> None:
    left = DraftTree.chain([1, 2])
    tokens, parents, depths = (torch.tensor(x).numpy() for x in ([7, 8, 9, 3], [-1, 0, 0, 2], [0, 1, 1, 2]))
    right = DraftTree(tokens, parents, depths, torch.zeros(4).numpy())
    items = [VerifyItem(region=HERE, length=0, tree=left), VerifyItem(region=THERE, length=0, tree=right)]
    plan = make_plan(items, 2, torch.device("cpu"))
    assert [level.rows.tolist() for level in plan.levels] == [[0, 2], [1, 3, 4], [5]]
    assert [None if level.parents is None else level.parents.tolist() for level in plan.levels] == [
        None,
        [0, 1, 1],
        [2],
    ]
    assert [level.ends for level in plan.levels] == [(), ((0, 0),), ()]
    # Four kept rows come first, two an item, oldest first.
    assert plan.before.tolist() == [[0, 1], [1, 4], [2, 3], [3, 6], [3, 6], [6, 8]]


# ------------------------------------------------------------------------------------------ memory


def test_the_published_shapes_numbers() -> None:
    """30 layers of 32 states of 128 x 128: 2 MiB a state and layer, as the issue and the notes reckon."""
    assert PUBLISHED_SHAPE.num_layers == 30
    assert PUBLISHED_SHAPE.state_bytes == 2 * MIB
    assert sequence_bytes(PUBLISHED_SHAPE, 2) == 30 * (2 * MIB + 3 * 8192 * 2)
    inputs = 64 * 30 * (32 * (128 + 128 + 2) * 4 + 8192 * 2)
    assert tree_bytes(PUBLISHED_SHAPE, 2, 64) == inputs + 128 * 2 * MIB
    assert tree_bytes(PUBLISHED_SHAPE, 2, 64) < 64 * 30 * 2 * MIB / 8


def test_the_note_of_a_server_says_both_numbers() -> None:
    note = delta_memory.states_note(PUBLISHED_SHAPE, 2, 64)
    assert note == "recurrent states: 61.4 MiB a sequence, and at most 346.5 MiB for its tree of 64 nodes"
    assert [delta_memory.size_text(size) for size in (7, 2048, 5 << 40)] == ["7.0 B", "2.0 KiB", "5.0 TiB"]


@pytest.mark.parametrize("width", [1, 5, 60])
def test_a_forward_takes_no_more_than_the_formula_says(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what is alive while one layer is scanned, and what a round keeps."""
    made = tiny_target("qwen3.5", torch.float32)
    assert made.delta is not None
    shape = made.delta.shape
    num_nodes = 61
    parents = [-1] + [0] * width + [max(0, node - width) for node in range(width + 1, num_nodes)]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    tree = DraftTree(*(torch.tensor(x).numpy() for x in ([1] * num_nodes, parents, depths)), torch.zeros(61).numpy())
    most = 0
    read = delta_state.read

    def counting(states: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        nonlocal most
        # The level's states and the product that is about to be summed, beside the level above.
        most = max(most, 2 * len(states))
        return read(states, at)

    monkeypatch.setattr(delta_state, "read", counting)
    (result,) = made.verify([VerifyItem(region=HERE, length=0, tree=tree)])
    assert result.logits.shape[0] == num_nodes
    assert most <= 2 * num_nodes
    round_ = made.delta._rounds[HERE.start]
    kept = sum(
        part.numel() * part.element_size()
        for inputs in round_.inputs
        for part in (inputs.k, inputs.v, inputs.decay, inputs.beta, inputs.mixed)
    )
    assert kept == num_nodes * shape.num_layers * delta_memory.input_bytes(shape, 4)


def test_a_committed_sequence_takes_what_the_formula_says(made: DecoderTarget) -> None:
    verify(made, [5, 6, 7, 8, 9])
    made.commit(HERE, 0, range(5))
    assert made.delta is not None
    past = made.delta.past(HERE, 5)
    taken = past.kept.numel() * 4 + sum(state.numel() * 4 for state in past.states)
    assert taken == sequence_bytes(made.delta.shape, 4)


def test_doctors_report_names_the_published_shape_and_the_target(tmp_path) -> None:
    from jetspec_engine.models.random_target import make_random_target

    make_random_target("random:qwen3.5", tmp_path)
    make_random_target("random:qwen3-moe", tmp_path)
    report = TreeStates().report("random:qwen3.5", tmp_path)
    assert list(report) == ["Qwen3.6-35B-A3B", "random:qwen3.5"]
    assert report["Qwen3.6-35B-A3B"]["tree_of_64_nodes_bytes"] == tree_bytes(PUBLISHED_SHAPE, 2, 64)
    assert TreeStates().report("random:qwen3-moe", tmp_path)["random:qwen3-moe"] == "no recurrent layers"


# ------------------------------------------------------------------------------------------ the pool


def test_no_more_regions_are_lent_than_there_are_states() -> None:
    freed: list[SlotRegion] = []
    pool = SequencePool(PagePool(8, 4), 2, freed.append)
    first, second = pool.allocate(5), pool.allocate(1)
    assert first is not None
    assert second is not None
    assert (pool.num_pages, pool.num_free_pages, pool.count_pages(first)) == (8, 5, 2)
    assert pool.allocate(1) is None
    pool.free(first)
    assert freed == [first]
    assert pool.allocate(20) == SlotRegion(start=0, capacity=20) if second.start >= 20 else pool.allocate(9)
    with pytest.raises(EngineError, match="are not lent"):
        pool.free(replace(second, start=16))
    assert freed == [first]


def test_an_empty_state_is_zero() -> None:
    shape = DeltaShape(
        num_key_heads=1, num_value_heads=2, key_dim=3, value_dim=4, conv_size=4, is_grouped=False, layers=(True, False)
    )
    past = DeltaState(shape, torch.bfloat16, torch.device("cpu")).past(HERE, 0)
    assert past.kept.shape == (1, 3, 14)
    assert [state.shape for state in past.states] == [(2, 3, 4)]
    assert not past.kept.any()
