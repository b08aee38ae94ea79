"""Names of the random targets and where in the cache they lie.

Knows nothing of how they are made, and loads nothing: ``random_target`` makes them.
"""

from pathlib import Path

from jetspec_engine.config import did_you_mean
from jetspec_engine.errors import ArtifactError

RANDOM_PREFIX = "random:"
RANDOM_FAMILIES = ("qwen3-moe", "qwen3-next", "qwen3.5", "qwen3.5-moe")
# Raise it when the same name gives other weights: what was made before is then made anew.
RECIPE = 1


def is_random_name(name: str) -> bool:
    """Say whether a name asks for a random target."""
    return name.startswith(RANDOM_PREFIX)


def random_folder(name: str, cache_dir: Path) -> Path:
    """Return the folder of a random target, made or not. Raises ArtifactError for an unknown family."""
    family = name.removeprefix(RANDOM_PREFIX)
    if family not in RANDOM_FAMILIES:
        expected = ", ".join(RANDOM_PREFIX + known for known in RANDOM_FAMILIES)
        hint = did_you_mean(family, RANDOM_FAMILIES) or f"--target {RANDOM_PREFIX}{RANDOM_FAMILIES[0]} --drafter recall"
        raise ArtifactError(f"model {name}: no such family, expected {expected}", hint=hint)
    return cache_dir / f"random-{family}-{RECIPE}"
