"""Writes a report in one format to a file or to stdout."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jetspec_cli import console
from jetspec_cli.reporting import html_page, json_doc, matrix_text, plots

TEXTS = {
    "table": matrix_text.as_table,
    "md": matrix_text.as_markdown,
    "csv": matrix_text.as_csv,
    "json": matrix_text.as_json,
    "html": html_page.render,
}


def write(report: Mapping[str, Any], kind: str, out: Path | None) -> None:
    """Write a report.

    Args:
        report: plain data, finite.
        kind: table, md, csv, json, html, svg or png.
        out: None writes to stdout.

    Raises:
        UnavailableError: a picture is asked for and matplotlib is missing.
        InconclusiveError: a picture is asked for and there is nothing to draw.
    """
    if kind in TEXTS:
        text = console.printable(TEXTS[kind](report))
        if out is None:
            console.data(text.rstrip("\n"))
            return
        json_doc.write_whole(out, text)
    elif out is not None:
        plots.draw(report, out, kind)
    else:
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder) / "picture"
            plots.draw(report, picture, kind)
            sys.stdout.buffer.write(picture.read_bytes())
    if out is not None:
        console.talk(f"written to {out}")
