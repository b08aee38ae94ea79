"""The CI job fails on any token mismatch and keeps JUnit XML and a summary (R5): the exit code goes through."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def recipe(target: str) -> list[str]:
    """Return the lines of a Makefile recipe, continuations joined."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert found is not None
    return [line.strip() for line in found[1].splitlines()]


def test_R05_make_gate_is_the_gate_with_its_reports_and_its_exit_code():
    (line,) = [line for line in recipe("gate") if "jetspec gate" in line]
    assert not line.startswith("-")
    assert not re.search(r"\|\||;|&&|\|", line)
    for words in ("--prompts prompts/10.jsonl", "--junit reports/", "--summary reports/"):
        assert words in line


def test_R05_the_local_run_does_every_job_and_stops_at_a_failure():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make")] == [
        "make lint",
        "make test",
        "make package",
        "make gate",
    ]


def test_R05_the_workflow_runs_the_gate_and_keeps_what_it_wrote():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert not any("continue-on-error" in each for each in [*steps, *workflow["jobs"].values()])
    runs = [step["run"] for step in steps if "run" in step]
    assert {"make lint", "make test", "make package", "make gate"} <= set(runs)
    gate = workflow["jobs"]["gate"]["steps"]
    after = gate[[step.get("run") for step in gate].index("make gate") + 1 :]
    assert all(step["if"] == "always()" for step in after)
    assert any("GITHUB_STEP_SUMMARY" in step.get("run", "") for step in after)
    assert any(step.get("with", {}).get("path") == "reports/" for step in after)
    # "on" is a truth value in YAML 1.1.
    assert {"push", "pull_request"} <= set(workflow[True])
