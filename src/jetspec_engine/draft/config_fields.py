"""Typed reading of one ``config.json``: every failure is one line with file, key, value and expectation.

Knows nothing of what the keys mean. A key may stand at the top level or inside one of the nested blocks the public
formats use; standing in several places with different values is refused, never resolved by precedence.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from jetspec_engine.errors import ArtifactError

NESTED_BLOCKS = ("dflash_config", "jetspec_config")


class ConfigFields:
    """A configuration mapping with the name of the file it came from.

    Args:
        given: the parsed JSON object.
        where: what to call it in messages, e.g. ``"head/config.json"``.

    Raises:
        ArtifactError: ``given`` or a nested block is not an object.
    """

    def __init__(self, given: Any, where: str) -> None:
        if not isinstance(given, Mapping):
            raise ArtifactError(f"{where}: {_short(given)}, expected a JSON object")
        self.where = where
        self.places: list[tuple[str, Mapping[str, Any]]] = [("", given)]
        for name in NESTED_BLOCKS:
            block = given.get(name)
            if block is None:
                continue
            if not isinstance(block, Mapping):
                raise self.error(name, block, "a JSON object")
            self.places.insert(0, (f"{name}.", block))

    def error(self, key: str, value: Any, expected: str, *, hint: str = "") -> ArtifactError:
        """Return (not raise) the one-line error for a key."""
        return ArtifactError(f"{self.where}: {key}: {_short(value)}, expected {expected}", hint=hint)

    def everywhere(self, *names: str) -> list[tuple[str, Any]]:
        """Return (full key, value) of every place where one of the names stands; JSON null counts as absent."""
        return [
            (prefix + name, block[name])
            for prefix, block in self.places
            for name in names
            if block.get(name) is not None
        ]

    def all_items(self) -> list[tuple[str, Any]]:
        """Return every (full key, value) of the configuration and its nested blocks."""
        return [(prefix + name, value) for prefix, block in self.places for name, value in block.items()]

    def agreed(self, check: Callable[[str, Any], Any], *names: str) -> Any:
        """Return the checked value of a key (or of its synonyms), or None when it stands nowhere.

        Raises:
            ArtifactError: a value fails ``check(full_key, value)``, or two places contradict each other.
        """
        found = [(key, check(key, value)) for key, value in self.everywhere(*names)]
        for key, value in found[1:]:
            if value != found[0][1]:
                raise self.error(key, value, f"the same as {found[0][0]}: {_short(found[0][1])}")
        return found[0][1] if found else None

    def integer(self, name: str, low: int, high: int, *, default: int | None = None) -> int:
        """Return an integer in ``[low, high]``; absent keys take the default, or are errors without one."""

        def check(key: str, value: Any) -> int:
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise self.error(key, value, f"an integer in {low}..{high}")
            return value

        agreed = self.agreed(check, name)
        return int(self._required(default if agreed is None else agreed, name, f"an integer in {low}..{high}"))

    def number(self, name: str, *, default: float | None = None) -> float:
        """Return a finite number above zero; absent keys take the default, or are errors without one."""

        def check(key: str, value: Any) -> float:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value <= 0:
                raise self.error(key, value, "a finite number above 0")
            return float(value)

        agreed = self.agreed(check, name)
        return float(self._required(default if agreed is None else agreed, name, "a finite number above 0"))

    def boolean(self, *names: str) -> bool | None:
        """Return the agreed truth value of a key or its synonyms, None when all are absent."""

        def check(key: str, value: Any) -> bool:
            if not isinstance(value, bool):
                raise self.error(key, value, "true or false")
            return value

        agreed: bool | None = self.agreed(check, *names)
        return agreed

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...] | None:
        """Return a tuple of integers in ``[low, high]`` (one bare integer counts as a list of one), None if absent."""

        def check(key: str, value: Any) -> tuple[int, ...]:
            listed = value if isinstance(value, list) else [value]
            for item in listed:
                if not isinstance(item, int) or isinstance(item, bool) or not low <= item <= high:
                    raise self.error(key, value, f"integers in {low}..{high}")
            return tuple(listed)

        agreed: tuple[int, ...] | None = self.agreed(check, name)
        return agreed

    def _required(self, value: Any, name: str, expected: str) -> Any:
        if value is None:
            raise ArtifactError(f"{self.where}: {name}: missing, expected {expected}")
        return value


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
