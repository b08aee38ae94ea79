"""The incremental drafter against the slow recomputation, in float32 and, loosely, in bfloat16."""

import itertools

import pytest
import torch
from torch import Tensor

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.reference import reference_logits
from support.tiny_heads import MASK, DraftRig, head_document, tapped_states, tiny_head

VARIANTS = {
    "causal": {},
    "bidirectional": {"dflash_config__causal_head": False},
    "shifted": {"dflash_config__sample_from_anchor": True},
    "windowed": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
    "wide window": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9},
    "window of one": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 1},
    "no grouping": {"num_key_value_heads": 4},
    "one key head, one layer": {"num_key_value_heads": 1, "num_hidden_layers": 1},
    "long block": {"block_size": 12},
    "shortest block": {"block_size": 2},
}


def rig_of(name: str, dtype: torch.dtype = torch.float32) -> DraftRig:
    return DraftRig(tiny_head(HeadConfig.from_mapping(head_document(**VARIANTS[name]))), dtype=dtype)


def expected(rig: DraftRig, tapped: Tensor, anchor: int, num_rows: int | None = None) -> Tensor:
    return reference_logits(rig.head, rig.embedding, rig.lm_weight, tapped, anchor, num_rows=num_rows)


def close(ours: Tensor, theirs: Tensor) -> bool:
    assert ours.shape == theirs.shape
    return torch.allclose(ours, theirs, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 19])
def test_a_draft_equals_the_reference(name: str, length: int) -> None:
    rig = rig_of(name)
    tapped = tapped_states(rig.head.config, length)
    session = rig.session(tapped, start=11)
    assert close(rig.draft(session, anchor=9), expected(rig, tapped, 9))


@pytest.mark.parametrize("name", ["causal", "bidirectional", "windowed"])
@pytest.mark.parametrize("chunks", [(1,) * 12, (5, 7), (3, 1, 1, 6, 1), (11, 1), (12,)])
def test_any_chunking_of_the_context_gives_the_same_draft(name: str, chunks: tuple[int, ...]) -> None:
    rig = rig_of(name)
    tapped = tapped_states(rig.head.config, 12)
    session = rig.session()
    for part in tapped.split(list(chunks)):
        rig.extend(session, part)
    assert session.length == 12
    assert close(rig.draft(session), expected(rig, tapped, 9))


@pytest.mark.parametrize("name", ["causal", "bidirectional", "shifted", "windowed"])
def test_case_10_rejected_drafts_are_never_attended_again(name: str) -> None:
    rig = rig_of(name)
    tapped = tapped_states(rig.head.config, 40)
    session = rig.session(tapped[:4], start=3)
    committed = 4
    for kept, anchor in zip((1, 3, 1, 5, 2, 1, 4), itertools.cycle((9, 20, 31)), strict=False):
        assert close(rig.draft(session, anchor), expected(rig, tapped[:committed], anchor))
        rig.extend(session, tapped[committed : committed + kept])
        committed += kept
        assert session.length == committed


@pytest.mark.parametrize("name", ["causal", "bidirectional"])
def test_slot_0_of_the_block_is_the_anchor_and_the_others_are_masks(name: str) -> None:
    rig = rig_of(name)
    tapped = tapped_states(rig.head.config, 6)
    session = rig.session(tapped)
    ours = rig.draft(session, anchor=9)
    assert rig.embedded_ids == [[MASK], [9]]
    assert close(ours, expected(rig, tapped, 9))
    # The public mistake: MASK in slot 0 as well. It drafts too, only badly, so it must be visible here.
    assert not close(ours, expected(rig, tapped, MASK))


@pytest.mark.parametrize("room", range(6))
def test_a_causal_block_is_cut_where_its_region_ends_and_stays_exact(room: int) -> None:
    rig = rig_of("causal")
    tapped = tapped_states(rig.head.config, 7)
    session = rig.session(tapped, start=5, capacity=7 + room)
    offer = rig.drafter.propose([session], [9], 3)[0]
    found = max(0, min(4, room - 1))
    assert offer.tokens.shape == offer.logprobs.shape == (4, 3)
    assert torch.isfinite(offer.logprobs[:found]).all()
    assert (offer.logprobs[found:] == float("-inf")).all()
    if found:
        assert close(rig.logits[-1], expected(rig, tapped, 9, num_rows=room)[:found])


def test_a_batch_of_ragged_sessions_equals_each_alone() -> None:
    rig = rig_of("causal")
    config = rig.head.config
    lengths, starts = (3, 17, 0, 8), (0, 60, 120, 150)
    capacities = (60, 17 + 3, 30, 8)
    states = [tapped_states(config, n, seed=n) for n in lengths]
    sessions = [
        rig.session(state, start=start, capacity=capacity)
        for state, start, capacity in zip(states, starts, capacities, strict=True)
    ]
    anchors = [9, 10, 11, 12]
    together = rig.drafter.propose(sessions, anchors, 4)
    batch = rig.logits[-1]
    # 4, 2, 4 and 0 rows predict: the last region has no room for a draft.
    solo = [expected(rig, state, anchor) for state, anchor in zip(states, anchors, strict=True)]
    assert close(batch, torch.cat((solo[0], solo[1][:2], solo[2])))
    for session, anchor, offer in zip(sessions, anchors, together, strict=True):
        alone = rig.drafter.propose([session], [anchor], 4)[0]
        assert torch.equal(alone.tokens, offer.tokens)
        assert torch.allclose(alone.logprobs, offer.logprobs, atol=1e-4)


@pytest.mark.parametrize("name", ["causal", "bidirectional", "windowed"])
def test_bfloat16_is_close(name: str) -> None:
    rig = rig_of(name, torch.bfloat16)
    tapped = tapped_states(rig.head.config, 19)
    session = rig.session(tapped)
    error = (rig.draft(session) - expected(rig, tapped, 9)).norm() / expected(rig, tapped, 9).norm()
    assert error < 0.05
