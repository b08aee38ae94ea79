"""Which check of the self-test is needed for what: python -m tests.measure.needed_checks --out FILE.

Runs every check on every seeded fault and lists, for each check, the faults that would live without it.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.measure.common import write

from jetspec_cli.gating.self_test import KILLED, run_self_test


def needed_checks(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, for every check, the mutants that no other check of a thorough run kills."""
    kills = {row["name"]: set(row["killed_by"]) for row in document["mutants"] if row["status"] == KILLED}
    return {check: [name for name, by in kills.items() if by == {check}] for check in document["checks"]}


def main() -> None:
    """Print the table and write the document; exits 1 when a check is needed for nothing, or a fault lives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    command = ["python", "-m", "tests.measure.needed_checks", *sys.argv[1:]]
    begin = time.monotonic()
    thorough = run_self_test(command, lambda done, of, trial: print(trial, flush=True), is_thorough=True)
    if thorough["summary"]["outcome"] == "interrupted":
        sys.exit(thorough["exit_code"])  # of a part of the faults nothing can be said about what is needed
    needed = needed_checks(thorough)
    kills = {check: sum(check in row["killed_by"] for row in thorough["mutants"]) for check in needed}
    rows = [
        {"check": check, "means": thorough["checks"][check], "kills": kills[check], "alive_without_it": alive}
        for check, alive in needed.items()
    ]
    document: dict[str, Any] = {
        **{key: thorough[key] for key in ("schema_version", "tool", "environment", "summary", "healthy")},
        "kind": "needed_checks",
        "command": command,
        "seconds": round(time.monotonic() - begin, 1),
        "needed": rows,
        "mutants": [
            {"name": row["name"], "dtype": row["dtype"], "status": row["status"], "killed_by": list(row["killed_by"])}
            for row in thorough["mutants"]
        ],
    }
    write(options.out, document)
    for row in rows:
        print(f"{row['check']:15} kills {row['kills']:3}; without it live: {', '.join(row['alive_without_it']) or '-'}")
    is_whole = all(row["alive_without_it"] for row in rows) and all(
        row["status"] in (KILLED, "not applicable") for row in thorough["mutants"]
    )
    sys.exit(0 if is_whole and not thorough["healthy"] else 1)


if __name__ == "__main__":
    main()
