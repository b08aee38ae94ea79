"""``jetspec doctor``: what can run here, and what is missing."""

import typer

from jetspec_cli import options


def doctor(output: options.Format = "table") -> None:
    """Say what can run here.

    Exits 0 when some engine can, 3 otherwise.
    """
    from jetspec_cli import console, exit_codes
    from jetspec_cli.reporting import tables
    from jetspec_cli.serving import checkup

    options.check_format(output)
    report = checkup.examine()
    if output == "json":
        console.data_json(report)
    else:
        console.data(tables.nested(report))
    if not report["can_run"]:
        raise typer.Exit(exit_codes.CANNOT_RUN)
