"""The identities that every finished request has to satisfy, each broken by itself."""

from typing import Any

import pytest

from jetspec_engine.embedded.counters import check_identities
from jetspec_engine.errors import EngineError
from jetspec_engine.records import RequestStats

# A prefill's token, two rounds of three, and one that ended the text within its drafts.
GOOD: dict[str, Any] = {
    "num_emitted_tokens": 9, "num_rounds": 4, "accept_histogram": [0, 1, 1, 2], "num_proposed_drafts": 45,
    "num_correct_drafts": 6,
}  # fmt: skip


@pytest.mark.parametrize("num_correct", [5, 6])
def test_a_right_record_passes(num_correct: int) -> None:
    check_identities(RequestStats(**{**GOOD, "num_correct_drafts": num_correct}))
    check_identities(RequestStats(accept_histogram=[0, 0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_rounds": 5}, "4 rounds, expected num_rounds = 5"),
        ({"accept_histogram": [0, 1, 1, 2, 1]}, "5 rounds, expected num_rounds = 4"),
        ({"accept_histogram": [0, 0, 2, 2]}, "10 tokens, expected num_emitted_tokens = 9"),
        ({"num_emitted_tokens": 8}, "9 tokens, expected num_emitted_tokens = 8"),
        ({"num_proposed_drafts": 5}, "expected at most 5 proposed"),
        ({"num_correct_drafts": 4}, "num_correct_drafts: 4, expected 5 or one more"),
        ({"num_correct_drafts": 7}, "num_correct_drafts: 7, expected 5 or one more"),
    ],
)
def test_a_broken_identity_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check_identities(RequestStats(**{**GOOD, **changes}))
