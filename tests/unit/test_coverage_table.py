"""``tests/COVERAGE.md`` names every case and requirement, and only tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "COVERAGE.md").read_text(encoding="utf-8")


def test_every_test_named_in_the_table_exists():
    defined = set()
    for path in TESTS.rglob("test_*.py"):
        defined.update(re.findall(r"^\s*def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`(test_\w+)`", TABLE))
    assert named
    assert named <= defined, named - defined


def test_every_case_has_a_row():
    assert re.findall(r"^\| (\d+) \|", TABLE, re.MULTILINE) == [str(number) for number in range(1, 35)]


def test_every_requirement_has_a_row():
    numbers = [*range(1, 7), *range(10, 19), *range(20, 40), *range(50, 55)]
    rows = re.findall(r"^\| R(\d+) \|", TABLE, re.MULTILINE)
    assert sorted(map(int, rows)) == numbers
