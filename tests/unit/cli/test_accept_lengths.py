"""Accept length is pooled, emitted tokens / rounds over a set, with each class's beside it (R18), in gate and bench."""

import pytest

from jetspec_cli.bench import summary as bench
from jetspec_cli.gating import summary as gate
from jetspec_cli.gating.records import Run
from jetspec_cli.serving.generation import Generation

# (class, emitted tokens, rounds); the means of the ratios would be 4 overall and 2 and 6 by class.
ANSWERS = [("code", 10, 5), ("prose", 6, 1), ("prose", 12, 3)]
EXPECTED = (28 / 9, {"code": 2.0, "prose": 18 / 4})


def run_of(text_class: str, tokens: int, rounds: int) -> Run:
    made = Generation(text="", token_ids=None, finish="stop", num_emitted_tokens=tokens, num_rounds=rounds)
    return Run(
        dtype="float32", prompt_id="p", text_class=text_class, role="candidate", label="W4 B16", tree=None, attempt=0,
        is_cache_flushed=True, generation=made,
    )  # fmt: skip


def row_of(text_class: str, tokens: int, rounds: int) -> dict:
    drafts = {"num_proposed_drafts": 15 * rounds, "num_correct_drafts": tokens - rounds}
    histogram = [0] * 16
    histogram[tokens // rounds] = rounds
    return {"class": text_class, "num_emitted_tokens": tokens, "num_rounds": rounds, "accept_histogram": histogram,
            **drafts}  # fmt: skip


@pytest.mark.parametrize(
    "found",
    [gate.accept(run_of(*one) for one in ANSWERS), bench.accept([row_of(*one) for one in ANSWERS])],
    ids=["gate", "bench"],
)
def test_R18_case_34_accept_length_is_pooled_over_rounds(found):
    assert (found["accept_length"], found["accept_length_by_class"]) == (pytest.approx(EXPECTED[0]), EXPECTED[1])


def test_accept_rate_and_histogram_are_sums_too():
    found = bench.accept([row_of(*one) for one in ANSWERS])
    assert found["accept_rate"] == pytest.approx((28 - 9) / (15 * 9))
    assert found["accept_histogram"] == [0, 0, 5, 0, 3, 0, 1]
    assert found["accept_histogram_by_class"]["prose"] == [0, 0, 0, 0, 3, 0, 1]


@pytest.mark.parametrize("accept", [gate.accept, bench.accept])
def test_without_counters_there_is_none(accept):
    assert accept([])["accept_length"] is None
