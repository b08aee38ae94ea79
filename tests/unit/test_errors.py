"""Errors are one line that a terminal can show, whatever the value in it is."""

import pytest

from jetspec_engine.errors import MOST_CHARACTERS, ArtifactError, ConfigError


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("bad \udcff", "bad \\udcff"),
        ("über 東京 🙂", "über 東京 🙂"),
        ("two  spaces", "two  spaces"),
    ],
)
def test_a_fact_is_one_line(given: str, shown: str) -> None:
    assert ArtifactError(given).what == str(ArtifactError(given)) == shown


def test_a_long_value_loses_its_middle_and_keeps_what_was_expected() -> None:
    what = ConfigError(f"tree.rule: {'a' * 5000!r}, expected one of b").what
    assert len(what) < MOST_CHARACTERS + 10
    assert what.startswith("tree.rule: 'aaa")
    assert what.endswith("aaa', expected one of b")
