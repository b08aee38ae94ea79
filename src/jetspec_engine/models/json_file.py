"""A JSON object read from a model folder, with checked look-ups that name file, key, value and expectation.

Knows nothing of what the keys mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from jetspec_engine.errors import ArtifactError
from jetspec_engine.json_text import read_json

MAX_JSON_BYTES = 256 * 1024 * 1024
_REQUIRED = object()


@dataclass(frozen=True, kw_only=True)
class JsonFile:
    """One JSON object of a model folder.

    Attributes:
        name: how the file is named in messages.
        values: the object's items.
    """

    name: str
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that must hold one JSON object.

        Raises:
            ArtifactError: see ``read_json``; or not an object.
        """
        values = read_json(path, max_bytes=MAX_JSON_BYTES)
        if not isinstance(values, dict):
            raise ArtifactError(f"{path}: {type(values).__name__}, expected a JSON object")
        return cls(name=str(path), values=values)

    def refuse(self, key: str, expected: str, *, hint: str = "") -> NoReturn:
        """Raise ArtifactError for a key, naming its value or that it is missing."""
        shown = repr(self.values[key]) if key in self.values else "missing"
        raise ArtifactError(f"{self.name}: {key}: {shown[:200]}, expected {expected}", hint=hint)

    def section(self, key: str) -> "JsonFile | None":
        """Return a nested object as its own file (``name: key``), or None when absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(key, "an object or null")
        return JsonFile(name=f"{self.name}: {key}", values=value)

    def integer(self, key: str, low: int, high: int, *, default: Any = _REQUIRED) -> Any:
        """Return an integer in ``[low, high]``; absent or null gives the default, or an error without one."""
        value = self.values.get(key)
        if value is None and default is not _REQUIRED:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"an integer in [{low}, {high}]")
        return value

    def number(self, key: str, low: float, high: float, *, default: Any = _REQUIRED) -> Any:
        """Return a finite float in ``[low, high]``; absent or null gives the default, or an error without one."""
        value = self.values.get(key)
        if value is None and default is not _REQUIRED:
            return default
        # Comparing refuses NaN and infinities too, and takes integers too large for a float.
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(key, f"a number in [{low}, {high}]")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false; absent or null gives the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return bool(value)

    def choice(self, key: str, choices: Sequence[str], *, default: str) -> str:
        """Return one of the choices; absent or null gives the default."""
        value = self.values.get(key)
        if value is None:
            return default
        if value not in choices:
            self.refuse(key, f"one of {', '.join(choices)}")
        return str(value)
