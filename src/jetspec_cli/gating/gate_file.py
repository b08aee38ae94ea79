"""Reads a gate file: TOML, small, in UTF-8.

Knows nothing of what its keys mean.
"""

import tomllib
from pathlib import Path
from typing import Any

from jetspec_engine.errors import ConfigError

# A gate file has some dozens of lines. The parser's time grows with the square of a dotted key's length.
MAX_BYTES = 1 << 16


def read_gate_file(path: Path) -> dict[str, Any]:
    """Return a gate file's content; ``prompts`` is made relative to the file's folder.

    Raises:
        ConfigError: the file is missing, too large or not TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"gate file: {path}: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"gate file: {path}: expected at most {MAX_BYTES} bytes")
    try:
        given = tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is 0x{content[error.start]:02x}"
        raise ConfigError(f"gate file: {path}: {byte}, expected UTF-8") from error
    except RecursionError as error:
        raise ConfigError(f"gate file: {path}: not TOML: nested too deeply") from error
    except ValueError as error:
        # Also how integers of thousands of digits are refused.
        raise ConfigError(f"gate file: {path}: not TOML: {error}") from error
    if isinstance(given.get("prompts"), str):
        given["prompts"] = str(path.parent / given["prompts"])
    return given
