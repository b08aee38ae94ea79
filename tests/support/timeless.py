"""Results without what differs from run to run: two runs of the same cells must agree in all the rest."""

from collections.abc import Set as AbstractSet
from typing import Any


def without_times(value: Any, times: AbstractSet[str]) -> Any:
    """Return a document without these keys, at any depth, and of sums by prompt only the counts."""
    if isinstance(value, dict):
        kept = {key: without_times(item, times) for key, item in value.items() if key not in times}
        if "by_prompt" in kept:
            kept["by_prompt"] = {name: sums[:2] for name, sums in kept["by_prompt"].items()}
        return kept
    return [without_times(item, times) for item in value] if isinstance(value, list) else value
