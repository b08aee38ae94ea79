"""The note inside a finished folder of the cache: what it was made from and how large its files are.

A folder without a valid note is unfinished, whatever else is in it. Knows nothing of how folders are made.
"""

import json
from pathlib import Path

from jetspec_engine import __version__
from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.catalog import CatalogEntry
from jetspec_engine.models.json_file import JsonFile

MARKER_FILE = "jetspec_model.json"
# Raise it when a conversion gives other files: folders made before are then made anew.
CONVERSION = 1


def write_marker(folder: Path, entry: CatalogEntry) -> None:
    """Note what the folder was made from and the size of every file in it; call it last."""
    note = {
        "name": entry.name,
        "conversion": CONVERSION,
        "made_by": f"jetspec {__version__}",
        "requirement": entry.requirement,
        "wheel_sha256": entry.wheel_sha256,
        "gguf_sha256": entry.member_sha256,
        "licence": entry.licence,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / MARKER_FILE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


def is_finished(folder: Path, entry: CatalogEntry) -> bool:
    """Say whether the folder is a finished conversion of this entry with every file at its noted size."""
    try:
        note = JsonFile.read(folder / MARKER_FILE).values
        files = note.get("files")
        is_same = note.get("conversion") == CONVERSION and note.get("gguf_sha256") == entry.member_sha256
        return (
            is_same
            and isinstance(files, dict)
            and bool(files)
            and all((folder / name).stat().st_size == size for name, size in files.items())
        )
    except (ArtifactError, OSError):
        return False
