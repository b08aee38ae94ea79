"""Reads result documents from files and folders; other kinds and other versions are refused by name.

Knows the documents' envelope, not what is in them.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jetspec_cli.bench.document import SCHEMA_VERSION
from jetspec_cli.bench.settings import details_of, setting_of, tell_apart
from jetspec_cli.bench.verdicts import is_predicted
from jetspec_cli.json_text import parse_json
from jetspec_engine.errors import ArtifactError

# Of "steps" only the costs were measured: forced acceptance, dummy weights (tests/measure/steps_matrix.py writes them).
KINDS = ("bench", "sweep", "steps")
Document = dict[str, Any]


def load_document(path: Path) -> Document:
    """Read one bench, sweep or steps document.

    Raises:
        ArtifactError: it is missing, not JSON, of another kind, or of another schema version.
    """
    try:
        document: Document = parse_json(path.read_bytes())
    except OSError as error:
        raise ArtifactError(f"results: {path}: {error.strerror or error}", hint="jetspec bench --out FILE") from error
    except ValueError as error:
        raise ArtifactError(f"results: {path}: not JSON: {error}", hint="jetspec bench --out FILE") from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in KINDS:
        raise ArtifactError(
            f"results: {path}: kind {kind!r}, expected {' or '.join(KINDS)}", hint="jetspec bench --out FILE"
        )
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ArtifactError(
            f"results: {path}: schema version {version!r}, this jetspec reads version {SCHEMA_VERSION}",
            hint="measure again, or use the jetspec that wrote it",
        )
    missing = [key for key in ("cells", "environment", "configuration", "servers", "summary") if key not in document]
    if missing:
        raise ArtifactError(f"results: {path}: {', '.join(missing)} missing")
    return document


def load_all(paths: Iterable[Path]) -> list[Document]:
    """Read every bench and sweep document named, or lying in a folder named; oldest first.

    In folders other JSON files (gate documents, for one) are passed over; a wrong version is not, nor is a file that
    is no JSON: it may be what is left of a result, and a result must not vanish from a table.

    Raises:
        ArtifactError: a file cannot be used, or nothing was found.
    """
    paths = list(paths)
    found: dict[Path, Document] = {}
    for path in paths:
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            if path.is_dir() and not _is_kind(file, otherwise=True):
                continue
            found[file.absolute()] = {**load_document(file), "source": file.name}
    if not found:
        names = ", ".join(map(str, paths))
        raise ArtifactError(f"results: no bench or sweep document in {names}", hint="jetspec sweep --prompts FILE")
    return sorted(found.values(), key=lambda document: str(document.get("started_at")))


def merge(documents: Iterable[Document]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return all cells, each with what it ran on, and notes; of equal configurations on one machine the latest run
    counts, but what was measured is never replaced by what was predicted.

    Args:
        documents: oldest first.
    """
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    replaced: dict[tuple[str, ...], int] = {}
    for document in documents:
        setting, details = setting_of(document), details_of(document)
        for cell in document["cells"]:
            key = (*setting.values(), *details.values(), cell["label"])
            if key in cells and is_predicted(cell) and not is_predicted(cells[key]):
                continue
            replaced[key] = replaced.get(key, -1) + 1
            cells[key] = {
                **cell, "setting": setting, "details": details, "source": document.get("source", ""),
            }  # fmt: skip
    notes = [f"{key[-1]}: measured {count + 1} times, the latest is shown" for key, count in replaced.items() if count]
    tell_apart(cells.values())
    return list(cells.values()), notes


def is_results(path: Path) -> bool:
    """Say whether a file holds results."""
    return path.is_file() and _is_kind(path, otherwise=False)


def _is_kind(path: Path, *, otherwise: bool) -> bool:
    try:
        document = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return otherwise
    return isinstance(document, dict) and document.get("kind") in KINDS
