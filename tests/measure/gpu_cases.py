"""What needs a GPU, run on one: python -m tests.measure.gpu_cases --out FILE [--only FOLDER] [PYTEST OPTIONS].

Runs the tests marked ``gpu`` and those of the SGLang kernels, and writes each one's outcome, with the cases of
``tests/COVERAGE.md`` that its name says.
"""

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.measure.common import ROOT, write
from tests.measure.needs import exit_without

from jetspec_cli import environment

if TYPE_CHECKING:
    import pytest

PLACES = ("tests/gpu", "tests/property", "tests/unit/embedded", "tests/unit/training", "tests/sglang/kernels")
OPTIONS = (
    f"--rootdir={ROOT}", "--import-mode=importlib", "-o", "addopts=", "-p", "no:cacheprovider", "-W", "ignore", "-q",
    "-ra", "--tb=short", "-m", "gpu or sglang",
)  # fmt: skip


class Outcomes:
    """A pytest plugin that keeps the document of what came of every test, whatever worker ran it.

    Args:
        out: written after every test, so that a run that is cut off leaves what it did.
        head: of the document.
    """

    def __init__(self, out: Path, head: dict[str, Any]) -> None:
        self._out, self._head, self._begin = out, head, time.monotonic()
        self._rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        name = report.nodeid
        row = self._rows.setdefault(name, {"test": name, "cases": cases_of(name), "outcome": "passed", "s": 0.0})
        row["s"] = round(row["s"] + report.duration, 2)
        if report.skipped and row["outcome"] == "passed":
            row["outcome"] = "skipped"
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            row |= {"outcome": "failed", "error": crash.message.split("\n")[0] if crash else "its worker died"}
        if report.when == "teardown":
            write(self._out, self.document(is_whole=False))

    def document(self, *, is_whole: bool) -> dict[str, Any]:
        """Return the result document; ``is_whole`` says that the run came to its end."""
        rows = sorted(self._rows.values(), key=lambda row: str(row["test"]))
        cases = sorted({case for row in rows for case in row["cases"]})
        return {
            **self._head,
            "seconds": round(time.monotonic() - self._begin, 1),
            "is_whole": is_whole,
            "counts": dict(Counter(row["outcome"] for row in rows)),
            "cases": {str(case): dict(Counter(r["outcome"] for r in rows if case in r["cases"])) for case in cases},
            "tests": rows,
        }


def cases_of(name: str) -> list[int]:
    """Return the numbers of the cases that a test's name says."""
    return sorted({int(number) for number in re.findall(r"(?:case_?|_and_)(\d+)", name.partition("[")[0])})


def main() -> None:
    """Run, write and say the counts; exits 1 when a test failed, none passed or the run was cut off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", help="of the sources, where they are no checkout")
    parser.add_argument("--only", choices=PLACES, help="the tests of one folder")
    options, more = parser.parse_known_args()
    exit_without(gpu=True, packages=["pytest"])
    import pytest

    places = [options.only] if options.only else PLACES
    stamp = environment.stamp()
    head = {
        "schema_version": 1,
        "kind": "gpu_cases",
        "command": ["python", "-m", "tests.measure.gpu_cases", *(["--only", *places] if options.only else []), *more],
        "environment": {**stamp, "commit": options.commit or stamp["commit"]},
    }
    outcomes = Outcomes(options.out.resolve(), head)
    code = pytest.main([*OPTIONS, *more, *(str(ROOT / place) for place in places)], plugins=[outcomes])
    is_whole = code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    document = outcomes.document(is_whole=is_whole)
    write(options.out.resolve(), document)
    print(document["counts"], "by case:", document["cases"])
    sys.exit(0 if is_whole and document["counts"].get("passed") and not document["counts"].get("failed") else 1)


if __name__ == "__main__":
    main()
