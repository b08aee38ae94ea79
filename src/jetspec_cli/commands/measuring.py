"""What ``bench`` and ``sweep`` share: prompts in, a measurement or its estimate, the document out."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jetspec_cli import console, environment, hints, options
from jetspec_cli.bench.estimate import estimate
from jetspec_cli.bench.execute import Asked, execute
from jetspec_cli.bench.plan import BenchSpec
from jetspec_cli.bench.server import Link
from jetspec_cli.prompts import Prompt, read_prompts
from jetspec_cli.reporting import json_doc
from jetspec_cli.reporting.bench_text import FORMATS, BenchLive, render, render_estimate
from jetspec_engine.config import DTYPES, check_choice
from jetspec_engine.errors import ArtifactError

ROWS_SUFFIX = ".requests.ndjson"
RECORDINGS_SUFFIX = ".recording.ndjson"


def run(spec: BenchSpec, link: Link, *, out: Path | None, output: str, is_dry: bool, is_spread: bool = False) -> int:
    """Measure, or estimate, and print; return the exit code.

    Args:
        spec, link: what to measure, and where.
        out: file of the document; None keeps nothing.
        output: format on stdout.
        is_dry: estimate only.
        is_spread: measure on a Ray cluster.
    """
    options.check_format(output, FORMATS)
    check_choice("dtype", spec.dtype, DTYPES)
    prompts = read_all(spec.prompts)
    if is_dry:
        console.data(render_estimate(estimate(spec, prompts, link, console.talk), output))
        return 0
    options.writable_file("--out", out)
    # Beside a device or a pipe nothing is kept.
    kept = out if out is not None and (out.is_file() or not out.exists()) else None
    rows = None if kept is None else kept.with_name(kept.stem + ROWS_SUFFIX)
    recordings = None if kept is None else kept.with_name(kept.stem + RECORDINGS_SUFFIX)
    for path in (rows, recordings):
        options.writable_file("--out", path)
    inputs = {f"--prompts {path}": path for path in spec.prompts}
    for path in (out, rows, recordings):
        options.separate_files({"--out": path}, inputs)
    command = environment.redacted_command(sys.argv)
    with console.bar(spec.kind, None) as bar:
        watcher = BenchLive(bar, out)
        asked = Asked(
            spec=spec, prompts=prompts, link=link, command=command, rows=rows, recordings=recordings,
            is_spread=is_spread,
        )  # fmt: skip
        document = execute(asked, watcher)
    console.data(render(document, output))
    if out is not None:
        json_doc.write_whole(out, json_doc.dumps(document))
        console.talk(f"written to {out}")
    if document["error"]:
        hint = document["hint"] or hints.fallback(document["exit_code"], sys.argv[1:])
        console.error(document["error"], hint, document["exit_code"], as_json=False)
    return int(document["exit_code"])


def read_all(paths: Sequence[Path]) -> list[Prompt]:
    """Read prompts files as one set. Raises ArtifactError, also for an id that two files share."""
    prompts: dict[str, Prompt] = {}
    for path in paths:
        for prompt in read_prompts(path):
            if prompt.prompt_id in prompts:
                raise ArtifactError(f"{path}: id {prompt.prompt_id!r} is in another of the files too")
            prompts[prompt.prompt_id] = prompt
    return list(prompts.values())
