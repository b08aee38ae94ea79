"""The folder of one mismatch, to attach to a bug report: summary, tokens, trees, tensors, environment, a gate file.

Knows files and words; nothing of servers. A prompt's name never decides where anything is written.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetspec_cli.reporting.forensics_text import forensics_lines
from jetspec_cli.reporting.json_doc import dumps
from jetspec_engine.errors import ArtifactError

MAX_NAME = 60
SUMMARY, TREES, PROMPT, GATE_FILE = "summary.md", "trees.json", "prompt.jsonl", "gate.toml"
FILES = f"""- `tokens.json`: prompt, both token lists and both texts. `{TREES}`: the round's tree on each side.
- `oracle.safetensors`, `candidate.safetensors`: positions and masks used and expected, every layer's rows on the
  accepted path, logits, committed cache rows, the reference's logits; the side's report is in the metadata.
- `report.json`: everything found. `environment.json`: machine, versions, commit, servers, command.
- `{PROMPT}`, `{GATE_FILE}`: this one comparison."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that goes into the folder, as plain data.

    Attributes:
        configuration: of the gate run, resolved.
        prompt: one row of a prompts file.
        oracle_name: of the oracle.
        runs: the oracle's and the candidate's, by side.
        report: on the mismatch.
        examined: the whole report of each side's examination.
        files: each side's safetensors file, where there is one.
        stamp: environment, servers and command of the run.
        url: of the server under test, when it was given.
    """

    configuration: Mapping[str, Any]
    prompt: Mapping[str, Any]
    oracle_name: str
    runs: Mapping[str, Mapping[str, Any]]
    report: Mapping[str, Any]
    examined: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, bytes]
    stamp: Mapping[str, Any]
    url: str | None

    @property
    def command(self) -> str:
        """The command that runs this one comparison again, from inside the folder."""
        return f"jetspec gate --gate {GATE_FILE}{f' --url {self.url}' if self.url else ''} --out again.json"


def write_bundle(parent: Path, evidence: Evidence) -> Path:
    """Write a new folder below ``parent`` and return it.

    Raises:
        ArtifactError: it cannot be written.
    """
    run = evidence.runs["candidate"]
    parts = (str(run["prompt_id"]), str(run["label"]), evidence.oracle_name, str(run["dtype"]))
    name = "-".join(safe_name(part) for part in parts)
    folder, number = parent / name, 1
    try:
        while folder.exists():
            number += 1
            folder = parent / f"{name}-{number}"
        folder.mkdir(parents=True)
        for file, text in _texts(evidence):
            (folder / file).write_text(text, encoding="utf-8", errors="backslashreplace")
        for side, raw in evidence.files.items():
            (folder / f"{safe_name(side)}.safetensors").write_bytes(raw)
    except OSError as error:
        raise ArtifactError(f"forensics folder: {folder}: {error.strerror or error}") from error
    return folder


def safe_name(text: str) -> str:
    """Return a text as part of a file's name: letters, digits, dot, dash and underscore, never a way up."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:MAX_NAME].strip(".-") or "unnamed"


def _texts(evidence: Evidence) -> Iterator[tuple[str, str]]:
    yield SUMMARY, "\n".join(summary_lines(evidence)) + "\n"
    yield "report.json", dumps({"mismatch": evidence.report, "examined": evidence.examined})
    runs = {side: {"tree": run["tree"], **(run["generation"] or {})} for side, run in evidence.runs.items()}
    yield "tokens.json", dumps({"prompt": evidence.prompt, **runs})
    trees = {side: one["round"]["tree"] for side, one in evidence.examined.items() if one.get("round")}
    if trees:
        yield TREES, dumps(trees)
    yield "environment.json", dumps(evidence.stamp)
    yield PROMPT, json.dumps(evidence.prompt) + "\n"
    yield GATE_FILE, "\n".join(gate_lines(evidence)) + "\n"


def gate_lines(evidence: Evidence) -> Iterator[str]:
    """Yield a gate file of this one comparison."""
    configuration, run = evidence.configuration, evidence.runs["candidate"]
    yield f"# One comparison; run it in this folder: {evidence.command}"
    yield f"prompts = {_toml(PROMPT)}"
    yield f"oracles = {_toml([evidence.oracle_name])}"
    yield f"dtypes = {_toml(['auto' if evidence.url else run['dtype']])}"
    yield f"repeat = {configuration['repeat']}"
    yield f"allow_near_ties = {_toml(configuration['allow_near_ties'])}"
    if run["tree"] is not None:
        tree = {key: "chain" if value is None else value for key, value in run["tree"].items()}
        # Only this rule reads them, and with another one they are an error.
        unread = () if tree["rule"] == "top2gap" else ("beta", "g0")
        yield "\n[tree]"
        yield from (f"{key} = {_toml(value)}" for key, value in tree.items() if key not in unread)
    if configuration["server"] and not evidence.url:
        yield "\n[server]"
        yield from (f"{key} = {_toml(value)}" for key, value in configuration["server"].items())


def summary_lines(evidence: Evidence) -> Iterator[str]:
    """Yield the summary for people, Markdown."""
    report, run = evidence.report, evidence.runs["candidate"]
    yield f"# Mismatch: prompt {run['prompt_id']}, {run['label']} against {evidence.oracle_name}, {run['dtype']}\n"
    sides = (f"{name} {report[side]['token_id']} {report[side]['text']!r}" for side, name in SIDES)
    yield f"{report['unit']} {report['position']}: {', '.join(sides)}. Verdict: **{report['verdict']}**.\n"
    if "gap_ulp" in report:
        yield f"Gap {report['gap_nats']:.4g} nats, {report['gap_ulp']:.4g} ULP of {report['dtype']}.\n"
    found = report.get("round")
    if found:
        yield f"Round {found['index']}, depth {found['depth']}, node {found.get('node')}: {found['source']}.\n"
    yield "## What differs first\n"
    yield from (f"- {line}" for line in forensics_lines(report))
    yield f"\n## Reproduce\n\nIn this folder:\n\n```\n{evidence.command}\n```\n"
    yield f"Decoding is greedy and takes no seed.\n\n## Files\n\n{FILES}"


SIDES = (("oracle", "oracle"), ("candidate", "tree"))


def _toml(value: Any) -> str:
    # JSON's strings, numbers, booleans and lists of them are TOML's too.
    return json.dumps(value)
