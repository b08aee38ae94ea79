"""``jetspec doctor``: what can run here, and what is missing."""

from typing import Annotated, Any

import typer

from jetspec_cli import options

Measure = Annotated[
    bool, typer.Option("--measure", help="Decode three prompts: the accept length the head expects, and the measured.")
]


def doctor(
    *, measure: Measure = False, target: options.Target = None, head: options.Head = None,
    device: options.Device = None, output: options.Format = "table",
) -> None:  # fmt: skip
    """Say what can run here.

    Exits 0 when some engine can, 3 otherwise.
    """
    from jetspec_cli import console, exit_codes
    from jetspec_cli.bench.accept_check import check_accept
    from jetspec_cli.reporting import tables
    from jetspec_cli.serving import checkup
    from jetspec_engine.errors import ConfigError

    options.check_format(output)
    settings = options.given(head=head, device=device)
    if settings and not measure:
        raise ConfigError(f"--{next(iter(settings))}: only together with --measure", hint="jetspec doctor --measure")
    report: dict[str, Any] = checkup.examine(target or options.SERVE.target)
    if measure and report["can_run"]:
        report["accept_length"] = check_accept({**settings, **options.given(target=target)}, console.talk)
    if output == "json":
        console.data_json(report)
    else:
        console.data(tables.nested(report))
    if not report["can_run"]:
        raise typer.Exit(exit_codes.CANNOT_RUN)
