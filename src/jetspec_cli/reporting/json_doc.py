"""Result documents as JSON files, written whole or not at all."""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def finite(value: Any) -> Any:
    """Return plain data with every infinity and NaN replaced by None, which JSON has no other word for."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dumps(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text: one line a record, so that results can be read and compared line by line."""
    parts = []
    for key, value in finite(document).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n    ".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in value)
            text = f"[\n    {rows}\n  ]"
        else:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2).replace("\n", "\n  ")
        parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees either the old content or all of the new.

    A link is followed. What is no file (``/dev/stdout``, a pipe) is written to as it is, and never replaced.

    Raises:
        OSError: it cannot be written; the error names the file, which a full disk's own does not.
    """
    try:
        _write(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors="backslashreplace") as device:
            device.write(text)
        return
    handle, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        # A lone surrogate in a model's text must not cost the whole document.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
