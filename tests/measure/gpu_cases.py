"""What needs a GPU, run on one: python -m tests.measure.gpu_cases --out FILE [--commit ID] [PYTEST OPTIONS].

Runs the tests marked ``gpu`` and those of the SGLang kernels, and writes each one's outcome, with the cases of
``tests/COVERAGE.md`` that its name says.
"""

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.measure.common import ROOT, write

from jetspec_cli import environment

PLACES = ("tests/gpu", "tests/property", "tests/unit/embedded", "tests/unit/training", "tests/sglang/kernels")
OPTIONS = (
    f"--rootdir={ROOT}", "--import-mode=importlib", "-o", "addopts=", "-p", "no:cacheprovider", "-W", "ignore", "-q",
    "-ra", "--tb=short", "-m", "gpu or sglang",
)  # fmt: skip


class Outcomes:
    """A pytest plugin that remembers what came of every test, whatever worker ran it."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows.setdefault(report.nodeid, {"test": report.nodeid, "cases": cases_of(report.nodeid), "s": 0.0})
        row["s"] = round(row["s"] + report.duration, 2)
        # A set-up that fails or skips has no call; a failure of any phase stands.
        if report.when == "call" or not report.passed:
            row["outcome"] = report.outcome if row.get("outcome") != "failed" else "failed"
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            row["error"] = crash.message.split("\n")[0] if crash else "no test was reached"


def cases_of(name: str) -> list[int]:
    """Return the numbers of the cases that a test's name says."""
    return sorted({int(number) for number in re.findall(r"(?:case_?|_and_)(\d+)", name.partition("[")[0])})


def main() -> None:
    """Run, write and say the counts; exits 1 when a test failed or none passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", help="of the sources, where they are no checkout")
    options, more = parser.parse_known_args()
    begin, outcomes = time.monotonic(), Outcomes()
    pytest.main([*OPTIONS, *more, *(str(ROOT / place) for place in PLACES)], plugins=[outcomes])
    rows = sorted(outcomes.rows.values(), key=lambda row: str(row["test"]))
    counts = Counter(row["outcome"] for row in rows)
    stamp = environment.stamp()
    document = {
        "schema_version": 1,
        "kind": "gpu_cases",
        "command": ["python", "-m", "tests.measure.gpu_cases", *more],
        "environment": {**stamp, "commit": options.commit or stamp["commit"]},
        "seconds": round(time.monotonic() - begin, 1),
        "counts": dict(counts),
        "cases": {
            str(case): dict(Counter(row["outcome"] for row in rows if case in row["cases"]))
            for case in sorted({case for row in rows for case in row["cases"]})
        },
        "tests": rows,
    }
    write(options.out.resolve(), document)
    print(dict(counts), "by case:", document["cases"])
    sys.exit(0 if counts["passed"] and not counts["failed"] else 1)


if __name__ == "__main__":
    main()
