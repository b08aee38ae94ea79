"""Exceptions of the engine: each carries one fact line and a hint.

Knows nothing of exit codes or HTTP; the command line and the server map the classes.
"""

import errno
import os
import re
from pathlib import Path

MOST_CHARACTERS = 1200


class JetspecError(Exception):
    """A failure a user can act on.

    Args:
        what: one line that names the thing and its value, e.g. ``"config.json: block_size: 0, expected 2..256"``.
            Values come from anywhere: what would break the line or a terminal is escaped, and a value of thousands of
            characters loses its middle.
        hint: what to do next, one line, or an empty string.
    """

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what = _one_line(what)
        super().__init__(self.what)
        self.hint = hint


class ConfigError(JetspecError):
    """A bad flag, gate file or configuration value."""


class UnavailableError(JetspecError):
    """Something this machine lacks: an extra, a device, a free port."""


class ArtifactError(JetspecError):
    """A bad input artifact: checkpoint, prompts file, results file, unknown model."""


class InconclusiveError(JetspecError):
    """Nothing could be concluded: nothing measured, an unstable oracle, too noisy."""


class EngineError(JetspecError):
    """The engine failed while running."""


class RequestError(JetspecError):
    """One request is invalid; the engine and its other requests are unaffected."""


class BusyError(JetspecError):
    """The operation needs an idle engine and requests are running."""


def _one_line(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        text = f"{text[: MOST_CHARACTERS // 2]} ... {text[-MOST_CHARACTERS // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def system_error(error: Exception, path: Path) -> OSError:
    """Return the system's error that a native library reports in words ("... (os error 28)"), about a file."""
    found = re.search(r"os error ([0-9]+)", str(error))
    number = int(found[1]) if found else errno.EIO
    return OSError(number, os.strerror(number), str(path))
