"""``jetspec matrix``: result files as matrices, break-even statements and reports; regressions against a baseline."""

from pathlib import Path
from typing import Annotated

import typer

from jetspec_cli import options

MALFORMED = (KeyError, IndexError, TypeError, AttributeError, ValueError, ArithmeticError)
FORMATS = ("table", "md", "csv", "json", "html", "svg", "png")
# Names of files that get a table.
PLAIN = ("", "txt")
Paths = Annotated[list[Path], typer.Argument(metavar="DIR_OR_FILES...", help="Result documents, or folders of them.")]
Format = Annotated[
    str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; else as --out is named, or table.")
]
Out = Annotated[Path | None, typer.Option("--out", help="File to write; stdout if unset.")]
Baseline = Annotated[
    Path | None, typer.Option("--baseline", help="Earlier results; a regression beyond noise exits 1.")
]


def matrix(*, paths: Paths, output: Format = None, out: Out = None, baseline: Baseline = None) -> None:
    """Render results: W x B and beta x g0 matrices of speedup, accept length, step cost ratio and verdict."""
    from jetspec_cli import console, exit_codes
    from jetspec_cli.bench.baseline import compare
    from jetspec_cli.bench.loading import is_results, load_all, merge
    from jetspec_cli.bench.matrices import report
    from jetspec_cli.reporting.json_doc import finite
    from jetspec_cli.reporting.matrix_files import write
    from jetspec_engine.errors import ArtifactError, ConfigError, InconclusiveError

    named = out.suffix.lstrip(".").lower() if out is not None else ""
    if output is None and named not in {*FORMATS, *PLAIN}:
        raise ConfigError(f"--out: {out}: no format {named}, expected {', '.join(FORMATS)}", hint="or give --format")
    kind = output or (named if named in FORMATS else "table")
    options.check_format(kind, FORMATS)
    options.writable_file("--out", out)
    if out is not None and is_results(out):
        raise ConfigError(f"--out: {out}: holds results, which would be lost", hint="name another file: --out")
    documents = load_all(paths)
    earlier = load_all([baseline]) if baseline is not None else []
    compared = None
    try:
        content = finite(report(documents))
        if baseline is not None:
            compared = compare(merge(documents)[0], merge(earlier)[0])
            content["notes"] += compared["notes"]
            content["baseline"] = {**finite(compared), "source": baseline.name}
        write(content, kind, out)
    except MALFORMED as error:
        # Results are data that anybody may have edited: what does not read as they are written is a bad artifact.
        raise ArtifactError(
            f"results: not as this jetspec writes them: {type(error).__name__}: {error}", hint="measure again"
        ) from error
    if compared is not None:
        if not compared["num_met"]:
            raise InconclusiveError("baseline: no cell was measured in both", hint="compare equal settings")
        for row in compared["regressions"]:
            console.talk(f"regression: {row['label']}: {row['metric']}")
        raise typer.Exit(exit_codes.FAILED if compared["regressions"] else exit_codes.DONE)
