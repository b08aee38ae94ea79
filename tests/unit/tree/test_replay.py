"""Replaying a recording: rounds that follow from the text and the offers alone, and records that travel whole."""

import numpy as np
import pytest

from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.records import Recording, ReplayedRound
from jetspec_engine.tree.replay import replay


def recording(text: list[int], offers: list[list[list[int]]], *, cap: int | None = None) -> Recording:
    """Record a text whose anchors are offered the given (D, W) ids, likelier ones first."""
    tokens = np.array(offers, "<i4")
    logprobs = np.broadcast_to(-1.0 - np.arange(tokens.shape[2], dtype="<f4"), tokens.shape).astype("<f4")
    return Recording(
        num_prompt_tokens=3, token_ids=tuple(text), cap=len(text) if cap is None else cap, shape=tokens.shape,
        tokens=tokens.tobytes(), logprobs=logprobs.tobytes(),
    )  # fmt: skip


TEXT = [10, 11, 12, 13, 14, 15]
# At token 10 the second candidates are right, at 12 nothing is, at 13 the first ones are.
OFFERS = [
    [[90, 11], [12, 91]],
    [[0, 1], [0, 1]],
    [[0, 1], [0, 1]],
    [[14, 1], [15, 1]],
    [[15, 1], [0, 1]],
]


def test_rounds_follow_the_text_from_branch_to_branch():
    rounds = replay(recording(TEXT, OFFERS), TreeConfig(width=2, budget=7))
    assert [(one.num_emitted, one.num_correct) for one in rounds] == [(3, 2), (2, 1)]
    assert sum(one.num_emitted for one in rounds) == len(TEXT) - 1
    # The cap leaves room for a depth of one only in the second round: a root and two candidates.
    assert [one.num_nodes for one in rounds] == [7, 3]


def test_a_text_that_ended_before_its_cap_drafts_to_full_depth_and_emits_no_further():
    rounds = replay(recording(TEXT, OFFERS, cap=50), TreeConfig(width=2, budget=7))
    assert rounds[-1] == ReplayedRound(num_nodes=7, num_emitted=2, num_correct=2)


def test_the_linear_path_and_plain_decoding():
    made = recording(TEXT, OFFERS)
    assert [one.num_emitted for one in replay(made, LINEAR)] == [1, 1, 1, 2]
    assert [one.num_nodes for one in replay(made, PLAIN)] == [1] * 5


@pytest.mark.parametrize("text", [[10], [10, 11]])
def test_short_texts(text):
    made = recording(text, np.zeros((len(text) - 1, 2, 2)).tolist()) if len(text) > 1 else Recording(
        num_prompt_tokens=1, token_ids=(10,), cap=5, shape=(0, 2, 2), tokens=b"", logprobs=b"",
    )  # fmt: skip
    assert len(replay(made, TreeConfig(width=2, budget=5))) == len(text) - 1


def test_a_recording_travels_as_plain_data_and_a_cut_one_is_refused():
    made = recording(TEXT, OFFERS)
    assert Recording.from_mapping(made.to_mapping()) == made
    with pytest.raises(ValueError, match="does not fit 5 tokens"):
        Recording.from_mapping({**made.to_mapping(), "token_ids": TEXT[:5]})
    with pytest.raises(ValueError, match="its arrays"):
        Recording.from_mapping({**made.to_mapping(), "logprobs": ""})
