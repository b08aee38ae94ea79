"""``jetspec gate --self-test``: what the gate's flag does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

SelfTest = Annotated[bool, typer.Option("--self-test", help="Try the checks on seeded faults of the engine.")]


def self_test(argv: Sequence[str], out: Path | None, output: str) -> int:
    """Run the self-test, print the table or the document, and return the exit code.

    Args:
        argv: of this process.
        out: where the document goes; None for nowhere.
        output: table or json.
    """
    from jetspec_cli import console, environment, options
    from jetspec_cli.gating.self_test import run_self_test
    from jetspec_cli.reporting import json_doc
    from jetspec_cli.reporting.self_test_text import self_test_text

    options.writable_file("--out", out)
    command = environment.redacted_command(argv)
    with console.bar("self-test", None) as bar:

        def tell(done: int, of: int, trial: str) -> None:
            bar.say(trial)
            bar.update(done=done, total=of)

        document = run_self_test(command, tell)
    console.data(json_doc.dumps(document).rstrip() if output == "json" else self_test_text(document))
    if out is not None:
        json_doc.write_whole(out, json_doc.dumps(document))
    return int(document["exit_code"])
