"""Reading JSON that may come from anywhere, model folders above all: bounded, unambiguous, with one-line errors.

Knows nothing of what the keys mean. Sizes are bounded before anything is parsed.
"""

import json
from collections import Counter
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
        return parse_json(text)
    except ValueError as error:
        raise ArtifactError(f"{where}: {error}, expected JSON") from error


def parse_json(text: str) -> Any:
    """Return the parsed text; NaN and infinities, which are no JSON, are for whoever knows the key to refuse.

    Raises:
        ValueError: not JSON, a key given twice in one object, or nesting without end.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {twice!r} is given twice")
    return made


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8"
