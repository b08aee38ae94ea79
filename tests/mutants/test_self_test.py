"""R50: every seeded fault trips a check, the healthy engine passes, and each check is needed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.measure.needed_checks import needed_checks
from typer.testing import CliRunner

from jetspec_cli.app import app
from jetspec_cli.gating import self_test
from jetspec_cli.gating.self_test import KILLED, NOT_APPLICABLE, run_self_test
from jetspec_cli.gating.self_test_checks import CHECKS, Trial, record_expected
from jetspec_cli.reporting.self_test_text import self_test_text
from jetspec_engine import registry

# For each check, a fault that no other check sees.
WITNESSES = {
    "comparison": "eos-inside-block-ignored",
    "teacher_forced": "target-tie-last-wins",
    "accounting": "histogram-off-by-one",
    "requests": "round-counted-twice",
    "acceptance": "walk-first-child-only",
    "work": "reverify",
    "reference": "window-too-short",
    "bits": "sums-in-memory-order",
    "ends": "cap-off-by-one",
    "cache": "prefix-without-draft-state",
    "concurrency": "rows-of-another-request",
    "pages": "page-leak",
}


class Kit:
    """The self-test's kit with some of its mutants only."""

    def __init__(self, kit: Any, names: set[str]) -> None:
        self._kit = kit
        self.mutants = tuple(mutant for mutant in kit.mutants if mutant.name in names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kit, name)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return run_self_test(["jetspec", "gate", "--self-test"], lambda done, of, trial: None)


def test_R50_every_mutant_is_killed_and_the_healthy_engine_passes(document: dict[str, Any]) -> None:
    assert document["healthy"] == []
    alive = [row["name"] for row in document["mutants"] if row["status"] not in (KILLED, NOT_APPLICABLE)]
    assert alive == []
    assert document["summary"]["mutants"][KILLED] >= 25
    assert document["exit_code"] == 0


# The faults that the requirement names, by the name of ours.
NAMED = {
    "wrong positions": "position-by-index", "visible siblings": "sibling-visible", "stale KV": "stale-draft-cache",
    "bonus off by one": "bonus-off-by-one", "another request's mask": "mask-of-another-request",
    "last-wins ties": "target-tie-last-wins", "last-wins ties of drafts": "draft-tie-last-wins",
    "lost hidden states": "hidden-of-rejected-nodes", "wrong state parent": "wrong-state-parent",
    "skipped commit": "commit-skipped",
}  # fmt: skip


def test_R50_the_faults_of_the_requirement_are_among_them() -> None:
    applied = {mutant.name for mutant in registry.self_test().mutants if not mutant.not_applicable}
    assert set(NAMED.values()) <= applied


def test_R50_the_table_says_check_prompt_and_token(document: dict[str, Any]) -> None:
    lines = self_test_text(document).splitlines()
    row = next(line for line in lines if line.startswith("position-by-index"))
    assert "comparison" in row
    assert ", token " in row
    assert "wrong-state-parent" in self_test_text(document)
    assert lines[-1].startswith("self-test passed")


def test_R50_removing_any_one_check_leaves_a_mutant_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit(registry.self_test(), set(WITNESSES.values()))
    monkeypatch.setattr(registry, "self_test", lambda: kit)
    thorough = run_self_test([], lambda done, of, trial: None, is_thorough=True)
    needed = needed_checks(thorough)
    assert {check: WITNESSES[check] in needed[check] for check in WITNESSES} == dict.fromkeys(WITNESSES, True)
    assert set(CHECKS) - set(WITNESSES) == set()


def test_case_07_patches_are_gone_afterwards() -> None:
    kit = registry.self_test()
    mutant = next(one for one in kit.mutants if one.name == "position-by-index")
    before = [vars(owner)[name] for owner, name, _ in mutant.patches()]
    with mutant.applied():
        assert [vars(owner)[name] for owner, name, _ in mutant.patches()] != before
    assert [vars(owner)[name] for owner, name, _ in mutant.patches()] == before


def test_a_surviving_mutant_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = Kit(registry.self_test(), {"cap-off-by-one"})
    monkeypatch.setattr(registry, "self_test", lambda: kit)
    monkeypatch.setattr(self_test, "Trial", Blind)
    result = CliRunner().invoke(app, ["gate", "--self-test", "--format", "json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["summary"]["outcome"] == "failed"


class Blind(Trial):
    """A trial that sees nothing."""

    def catches(self) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def two_faults(monkeypatch: pytest.MonkeyPatch) -> Kit:
    kit = Kit(registry.self_test(), {"cap-off-by-one", "page-leak"})
    monkeypatch.setattr(registry, "self_test", lambda: kit)
    return kit


def test_case_27_an_interrupted_self_test_keeps_the_faults_it_tried(
    two_faults: Kit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = (mutant.name for mutant in two_faults.mutants)
    whole = self_test._try_mutant

    def until_the_second(kit: Any, mutant: Any, *args: Any, **options: Any) -> dict[str, Any]:
        if mutant.name == second:
            raise KeyboardInterrupt
        return whole(kit, mutant, *args, **options)

    monkeypatch.setattr(self_test, "_try_mutant", until_the_second)
    result = CliRunner().invoke(app, ["gate", "--self-test", "--out", str(tmp_path / "st.json")])
    document = json.loads((tmp_path / "st.json").read_text())
    assert (result.exit_code, document["exit_code"], document["summary"]["outcome"]) == (130, 130, "interrupted")
    assert [(row["name"], row["status"]) for row in document["mutants"]] == [(first, KILLED)]
    assert document["summary"]["mutants"] == {KILLED: 1, "SURVIVED": 0, NOT_APPLICABLE: 0, "not tried": 1}
    last = result.stdout.splitlines()[-1]
    assert last.startswith("self-test interrupted: 1/1 mutants killed, 0 not applicable yet, 1 not tried")
    assert "healthy engine clean" in last
    said = ["the healthy engine", f"fault 1/2: {first}", f"fault 2/2: {second}"]
    assert result.stderr.splitlines() == said


def test_case_27_a_self_test_interrupted_before_the_first_fault_calls_nothing_clean(
    two_faults: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(self_test, "record_expected", stop)
    result = CliRunner().invoke(app, ["gate", "--self-test"])
    assert result.exit_code == 130
    assert "0/0 mutants killed" in result.stdout
    assert "2 not tried, healthy engine not tried to the end" in result.stdout


def test_the_drafter_is_given_trees_with_deep_and_late_paths() -> None:
    kit = registry.self_test()
    with kit.open(None, "float32") as running:
        expected = record_expected(kit, running)
        trial = Trial(kit, running, expected)
        assert list(trial.catches()) == []
    histograms = [run.accept_histogram or () for (_, side), run in expected.runs.items() if side.startswith("W3")]
    assert any(sum(histogram[4:]) for histogram in histograms)
