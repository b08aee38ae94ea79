"""Reading the small JSON files of a head folder, with one-line errors.

Knows nothing of their keys. Sizes are bounded before anything is parsed, since a folder may come from anywhere.
"""

import json
from pathlib import Path
from typing import Any

from jetspec_engine.errors import ArtifactError

MAX_JSON_BYTES = 4 * 2**20


def read_json(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the parsed file.

    Raises:
        ArtifactError: missing, unreadable, larger than ``max_bytes``, not UTF-8, not JSON, or a key given twice.
    """
    where = str(path)
    try:
        if path.exists() and not path.is_file():
            raise ArtifactError(f"{where}: no regular file, expected a JSON file")
        size = path.stat().st_size
        if size > max_bytes:
            raise ArtifactError(f"{where}: {size} bytes, expected at most {max_bytes}")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ArtifactError(f"{where}: missing, expected a JSON file", hint=f"looked in {path.parent}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{where}: {_reason(error)}, expected readable UTF-8 text") from error
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: {error}, expected JSON") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8"
