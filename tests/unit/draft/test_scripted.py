"""Scripted drafters offer what they promise: valid, vocabulary-safe candidates, by the record or against it."""

from typing import Any

import numpy as np
import pytest
import torch

from jetspec_engine.config import DRAFTERS, TREE_RULES, TreeConfig
from jetspec_engine.draft.scripted import STAND_INS
from jetspec_engine.draft.stand_in import StandIn, StandInSession
from jetspec_engine.errors import ConfigError
from jetspec_engine.protocol import Candidates, SlotRegion
from jetspec_engine.records import GenerateRequest
from jetspec_engine.tree.rules import BUILDERS

DEPTH, VOCAB = 6, 40
PROMPT, TEXT = [5, 6, 7], [11, 39, 0, 12, 11, 13, 14, 15, 16, 17]
RECORDINGS = [{"prompt_ids": PROMPT, "continuation_ids": TEXT}, {"prompt_ids": [1], "continuation_ids": []}]
KINDS: dict[str, dict[str, Any]] = {
    "right": {"recordings": RECORDINGS},
    "wrong": {"recordings": RECORDINGS},
    "replay": {"recordings": RECORDINGS, "rank": 2},
    "random": {"recordings": RECORDINGS, "seed": 3, "right_rate": 0.7},
    "scripted": {"rounds": [{"tokens": [[1, 2, 3], [4, 5]]}], "is_repeating": True},
    "recall": {},
}


def make(kind: str, *, depth: int = DEPTH, vocab_size: int = VOCAB, **options: Any) -> Any:
    return STAND_INS[kind](depth=depth, vocab_size=vocab_size, options=options)


def begin(drafter: StandIn, emitted: int, prompt: list[int] = PROMPT) -> tuple[StandInSession, int]:
    """A session whose text has ``emitted`` tokens, the last of which is the anchor, not committed."""
    session = drafter.open(GenerateRequest(request_id="r", input_ids=tuple(prompt)), SlotRegion(start=0, capacity=99))
    drafter.extend(session, prompt, None)
    drafter.extend(session, TEXT[: emitted - 1], None)
    return session, TEXT[emitted - 1]


def offer_of(drafter: StandIn, emitted: int, width: int = 4) -> Candidates:
    session, anchor = begin(drafter, emitted)
    return drafter.propose([session], [anchor], width)[0]


def test_every_stand_in_is_tested_here() -> None:
    assert set(KINDS) == set(STAND_INS)
    assert ("head", *STAND_INS) == DRAFTERS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("vocab_size", [VOCAB, 41, 10_000])
def test_candidates_are_always_valid(kind: str, width: int, vocab_size: int) -> None:
    drafter = make(kind, vocab_size=vocab_size, **KINDS[kind])
    assert drafter.needs_hidden is False
    for emitted in range(1, len(TEXT) + 1):
        offer = offer_of(drafter, emitted, width)
        assert offer.tokens.shape == offer.logprobs.shape == (DEPTH, width)
        assert offer.tokens.dtype == torch.int64
        assert offer.logprobs.dtype == torch.float32
        assert ((offer.tokens >= 0) & (offer.tokens < vocab_size)).all()
        assert (offer.logprobs <= 0).all()
        assert (offer.logprobs[:, :-1] >= offer.logprobs[:, 1:]).all()
        for row, usable in zip(offer.tokens.tolist(), (offer.logprobs > float("-inf")).tolist(), strict=True):
            kept = [token for token, is_usable in zip(row, usable, strict=True) if is_usable]
            assert len(set(kept)) == len(kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_smaller_than_the_width_is_safe(kind: str) -> None:
    options = {"rounds": [{"tokens": [[1, 0]]}]} if kind == "scripted" else {}
    drafter = make(kind, vocab_size=2, **options)
    session = drafter.open(GenerateRequest(request_id="r", input_ids=(1,)), SlotRegion(start=0, capacity=9))
    offer = drafter.propose([session], [1], 8)[0]
    assert offer.tokens.max() < 2


@pytest.mark.parametrize("kind", KINDS)
def test_case_10_the_length_is_the_committed_length(kind: str) -> None:
    drafter = make(kind, **KINDS[kind])
    session, anchor = begin(drafter, 3)
    assert session.length == len(PROMPT) + 2
    drafter.propose([session], [anchor], 4)
    assert session.length == len(PROMPT) + 2
    drafter.extend(session, [1, 2], None)
    assert session.length == len(PROMPT) + 4
    session.close()
    assert session.length == 0


def test_case_21_a_cached_prefix_gives_the_same_draft() -> None:
    for kind, options in KINDS.items():
        drafter = make(kind, **options)
        session, anchor = begin(drafter, 4)
        want = drafter.propose([session], [anchor], 4)[0]
        assert drafter.copy_prefix(SlotRegion(start=0, capacity=9), SlotRegion(start=50, capacity=9), 5)
        again = drafter.open(session.request, SlotRegion(start=50, capacity=9))
        drafter.adopt_prefix(again, session.token_ids[:5])
        drafter.extend(again, session.token_ids[5:], None)
        offer = drafter.propose([again], [anchor], 4)[0]
        assert torch.equal(offer.tokens, want.tokens)
        assert torch.equal(offer.logprobs, want.logprobs)


def test_case_12_the_right_drafter_is_always_right() -> None:
    drafter = make("right", recordings=RECORDINGS)
    for emitted in range(1, len(TEXT) + 1):
        offer = offer_of(drafter, emitted)
        expected = TEXT[emitted : emitted + DEPTH]
        assert offer.tokens[: len(expected), 0].tolist() == expected
        assert (offer.logprobs[len(expected) :] == float("-inf")).all()


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("width", [1, 4])
def test_case_12_the_right_drafters_tree_holds_the_whole_text_under_every_rule(rule: str, width: int) -> None:
    offer = offer_of(make("right", recordings=RECORDINGS), 1, width)
    tree = BUILDERS[rule](TEXT[0], offer, TreeConfig(rule=rule, width=width, budget=None if width == 1 else 30))
    node, depth = 0, 0
    while True:
        children = [i for i in range(tree.num_nodes) if tree.parents[i] == node]
        right = [child for child in children if depth < DEPTH and tree.tokens[child] == TEXT[depth + 1]]
        if not right:
            break
        node, depth = right[0], depth + 1
    assert depth == (DEPTH if rule != "accum_logp" or width == 1 else depth)
    assert depth >= 2


def test_case_12_the_wrong_drafter_is_always_wrong() -> None:
    drafter = make("wrong", recordings=RECORDINGS)
    for emitted in range(1, len(TEXT) + 1):
        offer = offer_of(drafter, emitted, 8)
        for depth, right in enumerate(TEXT[emitted : emitted + DEPTH]):
            assert right not in offer.tokens[depth].tolist()
        assert (offer.logprobs > float("-inf")).all()


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_the_replay_drafter_puts_the_right_token_at_its_rank(rank: int) -> None:
    drafter = make("replay", recordings=RECORDINGS, rank=rank)
    offer = offer_of(drafter, 2, 4)
    assert offer.tokens[:, rank].tolist() == TEXT[2 : 2 + DEPTH]
    if rank:
        narrow = offer_of(drafter, 2, rank)
        for depth, right in enumerate(TEXT[2 : 2 + DEPTH]):
            assert right not in narrow.tokens[depth].tolist()


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_case_08_a_comb_reaches_deep_through_last_children_only(rank: int) -> None:
    drafter = make("replay", recordings=RECORDINGS, rank=rank, is_comb=True)
    session, anchor = begin(drafter, 2)
    (tree,) = drafter.propose_trees([session], [anchor], 1 + DEPTH * (rank + 1), [DEPTH], 8)
    tree.validate()
    assert tree.tokens[0] == anchor
    node = 0
    for right in TEXT[2 : 2 + DEPTH]:
        children = np.flatnonzero(tree.parents == node)
        assert len(children) == rank + 1
        node = int(children[-1])
        assert tree.tokens[node] == right
    assert session.num_rounds == 1


def test_a_comb_is_cut_at_the_budget_and_the_useful_depth() -> None:
    drafter = make("replay", recordings=RECORDINGS, rank=2, is_comb=True)
    session, anchor = begin(drafter, 2)
    for max_nodes in range(1, 20):
        for max_depth in range(DEPTH + 1):
            (tree,) = drafter.propose_trees([session], [anchor], max_nodes, [max_depth], 8)
            tree.validate()
            assert tree.num_nodes == min(max_nodes, 1 + 3 * max_depth)
            assert tree.max_depth <= max_depth


def test_a_replay_without_a_comb_leaves_trees_to_the_rule() -> None:
    drafter = make("replay", recordings=RECORDINGS)
    session, anchor = begin(drafter, 2)
    assert drafter.propose_trees([session], [anchor], 16, [DEPTH], 8) == [None]
    assert session.num_rounds == 0


def test_the_random_drafter_depends_on_seed_prompt_and_place_only() -> None:
    def tokens(seed: int, emitted: int) -> list[list[int]]:
        return offer_of(make("random", seed=seed), emitted).tokens.tolist()

    assert tokens(1, 2) == tokens(1, 2)
    assert tokens(1, 2) != tokens(2, 2)
    assert tokens(1, 2) != tokens(1, 3)


def test_the_random_drafter_holds_the_right_token_as_often_as_asked() -> None:
    for rate, low, high in ((0.0, 0.0, 0.35), (0.5, 0.35, 0.85), (1.0, 1.0, 1.0)):
        hits, total = 0, 0
        ranks = set()
        for seed in range(20):
            drafter = make("random", recordings=RECORDINGS, seed=seed, right_rate=rate)
            for depth, row in enumerate(offer_of(drafter, 2).tokens.tolist()):
                right = TEXT[2 + depth]
                hits += right in row
                total += 1
                if right in row:
                    ranks.add(row.index(right))
        assert low <= hits / total <= high
        if rate == 1.0:
            assert ranks == {0, 1, 2, 3}


def test_a_prompt_without_a_recording_has_no_right_tokens() -> None:
    drafter = make("right", recordings=RECORDINGS)
    session, _ = begin(drafter, 2, prompt=[5, 6])
    assert (drafter.propose([session], [1], 4)[0].logprobs == float("-inf")).all()


def test_a_script_is_followed_round_by_round() -> None:
    rounds = [
        {"tokens": [[9, 8], [7]]},
        {"parents": [0, 0, 2], "tokens": [1, 2, 3]},
        {"tokens": [[4, 5]], "logprobs": [[-0.5, -2.0]]},
    ]
    drafter = make("scripted", rounds=rounds)
    session, anchor = begin(drafter, 2)

    assert drafter.propose_trees([session], [anchor], 16, [DEPTH], 8) == [None]
    first = drafter.propose([session], [anchor], 4)[0]
    assert first.tokens[0].tolist() == [9, 8, 0, 0]
    assert torch.isfinite(first.logprobs).sum(1).tolist() == [2, 1, 0, 0, 0, 0]

    (tree,) = drafter.propose_trees([session], [anchor], 16, [DEPTH], 8)
    assert tree.tokens.tolist() == [anchor, 1, 2, 3]
    assert tree.parents.tolist() == [-1, 0, 0, 2]

    third = drafter.propose([session], [anchor], 4)[0]
    assert third.logprobs[0, :2].tolist() == [-0.5, -2.0]

    assert drafter.propose_trees([session], [anchor], 16, [DEPTH], 8) == [None]
    assert (drafter.propose([session], [anchor], 4)[0].logprobs == float("-inf")).all()


def test_a_repeating_script_begins_again() -> None:
    drafter = make("scripted", rounds=[{"tokens": [[1]]}, {"tokens": [[2]]}], is_repeating=True)
    session, anchor = begin(drafter, 2)
    seen = [int(drafter.propose([session], [anchor], 1)[0].tokens[0, 0]) for _ in range(5)]
    assert seen == [1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("right", {"recording": []}, "unknown key 'recording'"),
        ("right", {"recordings": 3}, "drafter_options.recordings: '3', expected a list of recordings"),
        (
            "right",
            {"recordings": ["a"]},
            "drafter_options.recordings[0]: 'a', expected prompt_ids and",
        ),
        ("right", {"recordings": [{"prompt_ids": [1]}]}, "recordings[0].continuation_ids: 'None', expected a list"),
        (
            "wrong",
            {"recordings": [{"prompt_ids": [VOCAB], "continuation_ids": []}]},
            f"recordings[0].prompt_ids[0]: {VOCAB}, expected an integer in [0, {VOCAB - 1}]",
        ),
        (
            "wrong",
            {"recordings": [{"prompt_ids": [1], "continuation_ids": [i]} for i in (1, 2)]},
            "recordings[1].prompt_ids: recorded before with another continuation",
        ),
        ("replay", {"rank": -1}, "drafter_options.rank: -1"),
        ("replay", {"rank": VOCAB}, f"drafter_options.rank: {VOCAB}"),
        ("replay", {"is_comb": 1}, "drafter_options.is_comb: 1, expected true or false"),
        ("random", {"seed": -1}, "drafter_options.seed: -1"),
        ("random", {"seed": 1.5}, "drafter_options.seed: 1.5"),
        ("random", {"right_rate": 2}, "drafter_options.right_rate: 2"),
        ("random", {"right_rate": float("nan")}, "drafter_options.right_rate: nan"),
        ("scripted", {"rounds": {}}, "drafter_options.rounds: '{}', expected a list of rounds"),
        ("scripted", {"rounds": [[]]}, "rounds[0]: '[]', expected tokens, with logprobs or parents"),
        ("scripted", {"rounds": [{"tokens": [[1]] * 7}]}, "rounds[0].tokens: "),
        ("scripted", {"rounds": [{"tokens": [1]}]}, "rounds[0].tokens[0]: '1', expected a list of token ids"),
        ("scripted", {"rounds": [{"tokens": [[VOCAB]]}]}, "rounds[0].tokens[0][0]: 40"),
        ("scripted", {"rounds": [{"tokens": [[1, 1]]}]}, "expected distinct tokens, likeliest first"),
        ("scripted", {"rounds": [{"tokens": [[1, 2]], "logprobs": [[-2, -1]]}]}, "expected distinct tokens, likeliest"),
        ("scripted", {"rounds": [{"tokens": [[1, 2]], "logprobs": [[-2]]}]}, "expected one for each of 2 tokens"),
        ("scripted", {"rounds": [{"tokens": [[1]], "logprobs": [[0.5]]}]}, "rounds[0][0].logprobs: 0.5"),
        ("scripted", {"rounds": [{"tokens": [[1]], "logprobs": [[float("nan")]]}]}, "rounds[0][0].logprobs: nan"),
        (
            "scripted",
            {"rounds": [{"tokens": [1], "parents": [1]}]},
            "rounds[0].parents[0]: 1, expected an integer",
        ),
        ("scripted", {"rounds": [{"tokens": [1, 2], "parents": [0]}]}, "rounds[0].parents: 1 entries, expected 2"),
        ("scripted", {"rounds": [{"tokens": [1, 1], "parents": [0, 0]}]}, "siblings with the same token 1"),
        ("scripted", {"rounds": [{"tokens": [1], "parents": [-1]}]}, "rounds[0].parents[0]: -1"),
    ],
)
def test_bad_options_are_refused(kind: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(kind, **options)
    assert expected in caught.value.what


@pytest.mark.parametrize("changes", [{"depth": 0}, {"vocab_size": 1}, {"depth": True}])
def test_a_bad_shape_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make("right", **changes)
