"""Where two generations part, and in which round that was."""

import pytest

from jetspec_cli.gating.compare import first_difference, first_position
from jetspec_cli.gating.mismatch import round_of
from jetspec_cli.serving.generation import Generation, from_native, from_openai
from jetspec_engine.errors import EngineError


def answer(ids=None, text="x", finish="stop") -> Generation:
    return Generation(text=text, token_ids=ids, finish=finish)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((), (), None), ((), (1,), 0), ((2,), (1,), 0)],
)
def test_first_position(left, right, expected):
    assert first_position(left, right) == expected
    assert first_position(right, left) == expected


def test_ids_decide_where_both_sides_have_them():
    found = first_difference(answer((1, 2, 3)), answer((1, 9, 3)))
    assert (found.unit, found.position, found.oracle, found.candidate) == ("token_ids", 1, 2, 9)


def test_text_decides_where_one_side_has_no_ids():
    found = first_difference(answer((1, 2), text="ab"), answer(None, text="ac"))
    assert (found.unit, found.position, found.oracle, found.candidate) == ("text", 1, "b", "c")


def test_a_prefix_ends_the_shorter_side():
    found = first_difference(answer((1, 2)), answer((1,)))
    assert (found.position, found.oracle, found.candidate) == (1, 2, None)
    assert "the end from the tree" in found.detail


def test_the_same_ids_with_another_text_or_end_are_no_match():
    assert first_difference(answer((1,), text="a"), answer((1,), text="b")).unit == "text"
    assert "ended by" in first_difference(answer((1,)), answer((1,), finish="length")).detail
    assert first_difference(answer((1,)), answer((1,))) is None


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (0, (0, 1, "prefill")),
        (1, (1, 1, "draft")),
        (3, (1, 3, "bonus")),
        (4, (2, 1, "bonus")),
        (6, (3, 2, "bonus, or a draft at the text's end")),
    ],
)
def test_R51_round_depth_and_source_of_a_token(position, expected):
    found = round_of(position, [1, 3, 1, 2])
    assert (found["index"], found["depth"], found["source"]) == expected


def test_a_position_past_the_end_has_no_round():
    assert round_of(7, [1, 3, 1, 2]) is None


def native(**meta):
    return {"text": "t", "output_ids": [1, 2, 3], "meta_info": {"finish_reason": {"type": "stop"}, **meta}}


GOOD_META = {"completion_tokens": 3, "spec_verify_ct": 2, "spec_accept_histogram": [0, 1, 1]}


def test_identities_hold_for_a_right_record():
    assert from_native(native(**GOOD_META), 0.0, has_our_counters=True).accounting_fault() == ""


@pytest.mark.parametrize(
    ("meta", "fault"),
    [
        ({"completion_tokens": 4}, "3 token ids came, completion_tokens is 4"),
        ({"spec_verify_ct": 3}, "holds 2 rounds, spec_verify_ct is 3"),
        ({"spec_accept_histogram": [0, 2, 0]}, "holds 2 tokens, completion_tokens is 3"),
    ],
)
def test_a_broken_identity_is_named(meta, fault):
    generation = from_native(native(**{**GOOD_META, **meta}), 0.0, has_our_counters=True)
    assert fault in generation.accounting_fault()


def test_another_engines_histogram_is_not_read_as_ours():
    generation = from_native(native(completion_tokens=3, spec_accept_histogram=[5]), 0.0, has_our_counters=False)
    assert generation.accounting_fault() == ""


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no"}},
        {"error": "no"},
        {"text": "t"},
        {"text": "t", "meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}},
        {"text": "t", "meta_info": {"finish_reason": {"type": "error", "message": "NaN"}}},
    ],
)
def test_case_29_failures_in_a_body_are_failures(body):
    with pytest.raises(EngineError):
        from_native(body, 0.0, has_our_counters=True)


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"error": {"message": "no"}}])
def test_case_29_failures_in_an_openai_body_are_failures(body):
    with pytest.raises(EngineError):
        from_openai(body, 0.0)
