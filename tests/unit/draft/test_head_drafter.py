"""The head drafter: causality, prefixes, damage, and the limits of its slots."""

import pytest
import torch
from torch import Tensor

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.head_drafter import Block, HeadSession
from jetspec_engine.errors import EngineError
from jetspec_engine.protocol import SlotRegion
from jetspec_engine.records import GenerateRequest
from support.tiny_heads import VOCAB, DraftRig, head_document, tapped_states, tiny_head

REQUEST = GenerateRequest(request_id="r", input_ids=(1,))


def rig_of(**changes: object) -> DraftRig:
    return DraftRig(tiny_head(HeadConfig.from_mapping(head_document(**changes))))


def rows_of(rig: DraftRig, session: HeadSession, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return rig.drafter._run_layers([Block(session, 9, len(x))], x)


@pytest.mark.parametrize("length", [0, 1, 6])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("is_first_round", [True, False])
def test_R23_causality_reaches_the_attention(length: int, is_causal: bool, is_first_round: bool) -> None:
    """In the first round too: a public head's layers after the first were bidirectional there."""
    rig = rig_of(dflash_config__causal_head=is_causal)
    session = rig.session(tapped_states(rig.head.config, length))
    if not is_first_round:
        rig.draft(session)
        rig.extend(session, tapped_states(rig.head.config, 2, seed=5))
    block = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    before = rows_of(rig, session, block)
    for changed in range(1, 5):
        other = block.clone()
        other[changed] += 1.0
        after = rows_of(rig, session, other)
        assert torch.equal(before[:changed], after[:changed]) is is_causal
        assert not torch.equal(before[changed:], after[changed:])


def test_R23_every_layer_is_causal_on_its_own() -> None:
    rig = rig_of()
    session = rig.session(tapped_states(rig.head.config, 3))
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(5, heads, 8, generator=generator) for heads in (4, 2, 2))
    for layer in range(2):
        plain = rig.drafter._attention.attend(layer, session.region.start, session.length, (q, k, v))
        changed = rig.drafter._attention.attend(layer, session.region.start, session.length, (q, k * 2, v * 2))
        assert torch.equal(plain[0], changed[0]) is False
        k2, v2 = k.clone(), v.clone()
        k2[3], v2[3] = 7.0, -7.0
        later = rig.drafter._attention.attend(layer, session.region.start, session.length, (q, k2, v2))
        assert torch.equal(plain[:3], later[:3])
        assert not torch.equal(plain[3], later[3])


def test_case_21_a_copied_prefix_drafts_as_the_original() -> None:
    rig = rig_of()
    tapped = tapped_states(rig.head.config, 14)
    first = rig.session(tapped, start=0, capacity=40)
    source, destination = first.region, SlotRegion(start=100, capacity=40)
    assert rig.drafter.copy_prefix(source, destination, 9)
    second = rig.drafter.open(REQUEST, destination)
    rig.drafter.adopt_prefix(second, [0] * 9)
    assert second.length == 9
    rig.extend(second, tapped[9:])
    torch.testing.assert_close(rig.draft(second), rig.draft(first))


def test_case_21_a_prefix_kept_in_place_drafts_as_computed_anew() -> None:
    rig = rig_of()
    tapped = tapped_states(rig.head.config, 14)
    first = rig.session(tapped)
    want = rig.draft(first)
    first.close()
    second = rig.drafter.open(REQUEST, first.region)
    rig.drafter.adopt_prefix(second, [0] * 10)
    rig.extend(second, tapped[10:])
    torch.testing.assert_close(rig.draft(second), want)


def test_case_21_a_prefix_without_draft_state_is_an_error_and_not_a_worse_draft() -> None:
    rig = rig_of()
    first = rig.session(tapped_states(rig.head.config, 6))
    assert not rig.drafter.copy_prefix(first.region, SlotRegion(start=100, capacity=40), 7)
    session = rig.drafter.open(REQUEST, SlotRegion(start=100, capacity=40))
    with pytest.raises(EngineError, match="draft state: 0 positions, expected the 6 of a cached prefix"):
        rig.drafter.adopt_prefix(session, [0] * 6)


def test_state_of_a_region_is_void_once_another_sequence_took_its_slots() -> None:
    rig = rig_of()
    rig.session(tapped_states(rig.head.config, 10), start=0, capacity=40).close()
    rig.session(tapped_states(rig.head.config, 3), start=5, capacity=20).close()
    session = rig.drafter.open(REQUEST, SlotRegion(start=0, capacity=40))
    with pytest.raises(EngineError, match="draft state"):
        rig.drafter.adopt_prefix(session, [0] * 10)


def test_a_prefix_is_adopted_before_anything_else() -> None:
    rig = rig_of()
    session = rig.session(tapped_states(rig.head.config, 3))
    with pytest.raises(EngineError, match="before a prefix is adopted"):
        rig.drafter.adopt_prefix(session, [0])


def test_no_slot_outside_the_region_is_touched() -> None:
    rig = rig_of()
    cache = rig.drafter._cache
    for pool in (cache.keys, cache.values):
        pool.fill_(77.0)
    session = rig.session(tapped_states(rig.head.config, 7), start=20, capacity=9)
    for _ in range(3):
        rig.draft(session)
    rig.extend(session, tapped_states(rig.head.config, 2))
    for pool in (cache.keys, cache.values):
        assert (pool[:, :20] == 77.0).all()
        assert (pool[:, 29:] == 77.0).all()
        assert (pool[:, 20:29] != 77.0).all()


def test_a_neighbour_does_not_matter() -> None:
    rig = rig_of()
    tapped = tapped_states(rig.head.config, 7)
    session = rig.session(tapped, start=20, capacity=30)
    want = rig.draft(session)
    rig.session(tapped_states(rig.head.config, 20, seed=8), start=0, capacity=20)
    rig.session(tapped_states(rig.head.config, 30, seed=9), start=50, capacity=30)
    assert torch.equal(rig.draft(session), want)


def test_width_1_offers_the_first_candidate_of_every_width() -> None:
    rig = rig_of()
    session = rig.session(tapped_states(rig.head.config, 7))
    narrow, wide = (rig.drafter.propose([session], [9], width)[0] for width in (1, 6))
    assert torch.equal(narrow.tokens, wide.tokens[:, :1])
    assert torch.equal(wide.tokens[:, 0], rig.logits[-1].argmax(-1))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_case_14_draft_logits_that_are_not_finite_cost_acceptance_only(bad: float, width: int) -> None:
    rig = rig_of()
    healthy = rig.session(tapped_states(rig.head.config, 7), start=0)
    want = rig.drafter.propose([healthy], [9], width)[0]
    tapped = tapped_states(rig.head.config, 7)
    tapped[3] = bad
    sick = rig.session(tapped, start=60)
    offers = rig.drafter.propose([sick, healthy], [9, 9], width)
    assert not torch.isfinite(rig.logits[-1][:4]).any()
    assert (offers[0].logprobs == float("-inf")).all()
    assert ((offers[0].tokens >= 0) & (offers[0].tokens < VOCAB)).all()
    assert torch.equal(offers[1].tokens, want.tokens)


def test_stale_garbage_in_slots_does_not_reach_a_later_sequence() -> None:
    rig = rig_of()
    tapped = tapped_states(rig.head.config, 7)
    want = rig.draft(rig.session(tapped))
    rig.drafter._cache.keys.fill_(float("nan"))
    rig.drafter._cache.values.fill_(float("nan"))
    assert torch.equal(rig.draft(rig.session(tapped)), want)


@pytest.mark.parametrize("hidden", [None, torch.zeros(2, 31), torch.zeros(3, 32), torch.zeros(2, 2, 32)])
def test_tapped_states_of_a_wrong_shape_are_refused(hidden: Tensor | None) -> None:
    rig = rig_of()
    session = rig.session()
    with pytest.raises(EngineError, match="tapped states"):
        rig.drafter.extend(session, [1, 2], hidden)
    assert session.length == 0


def test_more_positions_than_the_region_or_the_head_has_are_refused() -> None:
    rig = rig_of()
    session = rig.session(tapped_states(rig.head.config, 7), capacity=9)
    with pytest.raises(EngineError, match="10 positions, expected at most its capacity 9"):
        rig.extend(session, tapped_states(rig.head.config, 3))
    long = rig.session(capacity=100)
    with pytest.raises(EngineError, match="position 64, expected below 64"):
        rig.extend(long, tapped_states(rig.head.config, 65))
    assert (session.length, long.length) == (7, 0)


def test_the_heads_whole_context_can_be_used() -> None:
    rig = rig_of()
    session = rig.session(tapped_states(rig.head.config, 64), capacity=100)
    assert torch.isfinite(rig.draft(session)).all()


def test_a_region_outside_the_pool_is_refused() -> None:
    rig = rig_of()
    with pytest.raises(EngineError, match=r"slots 190\.\.210, expected within 0\.\.200"):
        rig.drafter.open(REQUEST, SlotRegion(start=190, capacity=20))


def test_a_closed_session_is_refused() -> None:
    rig = rig_of()
    session = rig.session(tapped_states(rig.head.config, 3))
    session.close()
    with pytest.raises(EngineError, match="after it was closed"):
        rig.drafter.propose([session], [9], 4)
    with pytest.raises(EngineError, match="after it was closed"):
        rig.extend(session, tapped_states(rig.head.config, 1))


def test_nothing_to_draft_for_is_nothing() -> None:
    assert rig_of().drafter.propose([], [], 4) == []


def test_an_empty_extension_changes_nothing() -> None:
    rig = rig_of()
    session = rig.session(tapped_states(rig.head.config, 3))
    rig.extend(session, tapped_states(rig.head.config, 0))
    assert session.length == 3


def test_R03_what_is_drafted_does_not_depend_on_the_rounds_in_which_a_text_was_committed() -> None:
    """Recordings commit one token a round, live rounds several: the library must see the same number of rows."""
    rig = rig_of()
    tapped = tapped_states(rig.head.config, 16)
    inner, seen = rig.drafter._head.context_keys_values, []

    def spy(states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(states))
        assert len(states) == len(cos) == len(sin)
        return inner(states, cos, sin)

    rig.drafter._head.context_keys_values = spy
    one, several = rig.session(tapped[:9], start=0), rig.session(tapped[:9], start=100)
    for row in tapped[9:]:
        rig.extend(one, row.unsqueeze(0))
    for cut in (9, 11, 12):
        rig.extend(several, tapped[cut : {9: 11, 11: 12, 12: 16}[cut]])
    assert set(seen[2:]) == {rig.head.config.block_size}
    assert torch.equal(rig.draft(one), rig.draft(several))
