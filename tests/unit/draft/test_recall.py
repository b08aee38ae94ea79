"""The drafter that remembers: wrong at first, and from then on every shape that tries a tree's states."""

import numpy as np
import pytest

from jetspec_engine.draft.recall import SHAPES, RecallDrafter
from jetspec_engine.draft.stand_in import StandInSession
from jetspec_engine.protocol import SlotRegion
from jetspec_engine.records import GenerateRequest
from jetspec_engine.tree.record import DraftTree

DEPTH, WIDTH, VOCAB_SIZE = 5, 4, 50
PROMPT, TEXT = (7, 8, 9), (7, 8, 9, *range(20, 40))
REGION = SlotRegion(start=0, capacity=100)


def session_of(drafter: RecallDrafter, prompt: tuple[int, ...] = PROMPT) -> StandInSession:
    session = drafter.open(GenerateRequest(request_id="r", input_ids=prompt), REGION)
    drafter.extend(session, prompt, None)
    return session


def taught() -> RecallDrafter:
    drafter = RecallDrafter(depth=DEPTH, vocab_size=VOCAB_SIZE, options={})
    drafter.extend(session_of(drafter), TEXT[len(PROMPT) :], None)
    return drafter


def dictated(drafter: RecallDrafter, shape: str, max_nodes: int = 64, width: int = WIDTH) -> DraftTree | None:
    session = session_of(drafter)
    session.num_rounds = SHAPES.index(shape)
    (tree,) = drafter.propose_trees([session], [TEXT[3]], max_nodes, [DEPTH], width)
    return tree


def right_children(tree: DraftTree) -> list[tuple[int, int]]:
    """Walk the right path; return each depth's place of the right token among its siblings, and how many they are."""
    node, places = 0, []
    for token in TEXT[4 : 4 + tree.max_depth]:
        children = np.flatnonzero(tree.parents == node).tolist()
        node = next(child for child in children if tree.tokens[child] == token)
        places.append((children.index(node), len(children)))
    return places


@pytest.mark.parametrize(("shape", "place"), [("last", (3, 4)), ("second", (1, 2)), ("first", (0, 2))])
def test_case_08_and_16_dictated_shapes_put_the_right_token_where_they_say(shape: str, place: tuple[int, int]) -> None:
    tree = dictated(taught(), shape)
    assert tree is not None
    tree.validate()
    assert right_children(tree) == [place] * DEPTH
    cut = dictated(taught(), shape, max_nodes=6)
    assert cut is not None
    assert cut.num_nodes == 6


@pytest.mark.parametrize("shape", ["right", "wrong", "anywhere"])
def test_other_shapes_are_candidates_that_the_rule_builds_from(shape: str) -> None:
    drafter = taught()
    assert dictated(drafter, shape) is None
    session = session_of(drafter)
    session.num_rounds = SHAPES.index(shape)
    (offer,) = drafter.propose([session], [TEXT[3]], WIDTH)
    is_there = [token in row for token, row in zip(TEXT[4 : 4 + DEPTH], offer.tokens.tolist(), strict=True)]
    if shape == "right":
        assert offer.tokens[:, 0].tolist() == list(TEXT[4 : 4 + DEPTH])
    elif shape == "wrong":
        assert not any(is_there)
    else:
        assert any(is_there)
    assert all(len(set(row)) == WIDTH for row in offer.tokens.tolist())


def test_a_width_of_one_gets_chains_only_and_unknown_prompts_nothing_right() -> None:
    drafter = taught()
    assert all(dictated(drafter, shape, width=1) is None for shape in SHAPES)
    other = session_of(drafter, (1, 2))
    assert drafter.propose_trees([other], [3], 64, [DEPTH], WIDTH) == [None]
    assert drafter.propose([other], [3], WIDTH)[0].tokens.shape == (DEPTH, WIDTH)


def test_the_longest_text_of_a_prompt_is_kept() -> None:
    drafter = taught()
    drafter.extend(session_of(drafter), (41, 42), None)
    assert session_of(drafter).expected_ids == TEXT
