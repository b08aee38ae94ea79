"""End rules and the stop scanner."""

import pytest

from jetspec_engine.embedded.stops import EndRules, StopScanner
from jetspec_engine.records import SamplingParams


def scan(stops: list[str], *pieces: str, is_trimmed: bool = True) -> tuple[str, str | None]:
    scanner = StopScanner(stops, is_trimmed=is_trimmed)
    text = ""
    for piece in pieces:
        matched = scanner.push(piece)
        text += scanner.take()
        if matched is not None:
            return text, matched
    scanner.release()
    return text + scanner.take(), None


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (("one STOP two",), ("one ", "STOP")),
        (("one ST", "OP two"), ("one ", "STOP")),
        (("one S", "T", "O", "P"), ("one ", "STOP")),
        (("one STO", "RE"), ("one STORE", None)),
        (("SSTOP",), ("S", "STOP")),
        (("one ST",), ("one ST", None)),
        (("STOP",), ("", "STOP")),
    ],
)
def test_a_stop_string_is_found_across_pieces(pieces: tuple[str, ...], expected: tuple[str, str | None]) -> None:
    assert scan(["STOP"], *pieces) == expected


def test_text_that_may_begin_a_stop_is_held_back_and_released() -> None:
    scanner = StopScanner(["abc"])
    assert scanner.push("xab") is None
    assert scanner.take() == "x"
    assert scanner.push("d") is None
    assert scanner.take() == "abd"


def test_the_stop_that_begins_first_wins_then_the_one_listed_first() -> None:
    assert scan(["cd", "bcd"], "abcd") == ("a", "bcd")
    assert scan(["ab", "abc"], "xabc") == ("x", "ab")


def test_an_untrimmed_stop_stays_in_the_text_and_nothing_after_it() -> None:
    assert scan(["STOP"], "one ST", "OP two", is_trimmed=False) == ("one STOP", "STOP")


def test_before_the_minimum_a_stop_passes_and_is_not_found_later() -> None:
    scanner = StopScanner(["ab"])
    assert scanner.push("xab", may_match=False) is None
    assert scanner.push("y") is None
    assert scanner.take() == "xaby"


def test_a_stop_that_passed_inside_held_text_is_not_found_later() -> None:
    scanner = StopScanner(["b", "abc"])
    scanner.push("xab", may_match=False)
    assert scanner.push("y") is None
    assert scanner.take() == "xaby"


def test_a_stop_that_begins_before_the_minimum_counts_when_it_ends_after_it() -> None:
    scanner = StopScanner(["ab"])
    scanner.push("xa", may_match=False)
    assert scanner.push("b") == "ab"
    assert scanner.take() == "x"


def test_rules_ignore_eos_but_not_the_requests_own_stop_ids() -> None:
    sampling = SamplingParams(stop_token_ids=(7,), ignore_eos=True, max_new_tokens=50)
    rules = EndRules.of(sampling, (2,), room=9)
    assert rules.end_ids == {7}
    assert rules.cap == 9
    assert EndRules.of(SamplingParams(stop_token_ids=(7,)), (2,), room=9).end_ids == {2, 7}


def test_case_06_the_first_token_that_may_end_comes_after_the_minimum() -> None:
    rules = EndRules.of(SamplingParams(min_new_tokens=3), (2,), room=100)
    assert [rules.may_end_after(n) for n in (1, 3, 4)] == [False, False, True]
