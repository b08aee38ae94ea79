"""Where a gate's document goes: files, a job summary, and the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jetspec_cli import console, options
from jetspec_cli.reporting import json_doc, junit, markdown, tables
from jetspec_cli.reporting.bundle import Evidence, write_bundle

EVIDENCE = "forensics"


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What to write.

    Attributes:
        out: JSON document; also rewritten during the run.
        junit: JUnit XML.
        summary: Markdown, appended.
        as_json: the document on stdout instead of a table.
        inputs: files that are read, by the flag that names them: none of them is an output.

    Raises:
        ConfigError: a file could not be written, or is an input or another output; found here, before any work is done.
    """

    out: Path | None = None
    junit: Path | None = None
    summary: Path | None = None
    as_json: bool = False
    inputs: Mapping[str, Path | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outputs = {"--out": self.out, "--junit": self.junit, "--summary": self.summary}
        for flag, path in outputs.items():
            options.writable_file(flag, path)
        options.separate_files(outputs, self.inputs)

    def keep(self, document: Mapping[str, Any]) -> None:
        """Write the document so far."""
        if self.out is not None:
            json_doc.write_whole(self.out, json_doc.dumps(document))

    def keep_evidence(self, evidence: Mapping[str, Any], document: Mapping[str, Any]) -> str:
        """Write a mismatch's folder beside the document, or below the current folder, and return it."""
        parent = Path(EVIDENCE) if self.out is None else self.out.with_name(f"{self.out.stem}-{EVIDENCE}")
        stamp = {key: document[key] for key in ("tool", "command", "started_at", "environment", "servers")}
        whole = Evidence(configuration=document["configuration"], stamp=stamp, **evidence)
        return str(write_bundle(parent, whole))

    def finish(self, document: Mapping[str, Any]) -> None:
        """Show the verdict, which a full disk must not cost, then write everything. Raises OSError."""
        clean = json_doc.finite(document)
        if self.as_json:
            console.data(json_doc.dumps(clean).rstrip())
        elif document["comparisons"] or not document["error"]:
            if text := tables.gate_text(clean):
                console.data(f"{text}\n")
            console.data(tables.conclusion(clean), tables.STYLES.get(clean["summary"]["outcome"], ""))
        self.keep(document)
        if self.junit is not None:
            json_doc.write_whole(self.junit, junit.render(clean))
        if self.summary is not None:
            markdown.append(self.summary, markdown.render(clean))
