"""What happens in the serving process before an engine loads: which engine, and is the target there.

Engines and the model store are reached through the registry only. Knows nothing of printing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jetspec_engine import registry
from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import ConfigError, UnavailableError
from jetspec_engine.records import Progress


def choose_engine(config: ServeConfig) -> ServeConfig:
    """Resolve ``engine="auto"`` (sglang where it can run, else embedded) and check that the engine can run.

    Raises:
        UnavailableError: it cannot run here; the hint says what to install.
        ConfigError: options for sglang with another engine.
    """
    name = config.engine
    if name == "auto":
        name = "sglang" if registry.backend("sglang").availability(config).is_available else "embedded"
    availability = registry.backend(name).availability(config)
    if not availability.is_available:
        raise UnavailableError(
            f"engine {name}: cannot run here: {', '.join(availability.missing)}", hint=availability.hint
        )
    if config.extra_args and name != "sglang":
        raise ConfigError(f"options after --: {' '.join(config.extra_args)!r}, engine {name} takes none")
    return replace(config, engine=name)


def catalogue_entry(config: ServeConfig) -> Mapping[str, Any] | None:
    """Return the store's entry of the target, or None for a folder or a name the store does not list."""
    if Path(config.target).expanduser().is_dir():
        return None
    entries = registry.model_store().list(Path(config.cache_dir))
    return next((entry for entry in entries if entry.get("name") == config.target), None)


def ensure_target(config: ServeConfig, *, can_pull: bool, on_progress: Callable[[Progress], None]) -> None:
    """Pull the target when the catalogue has it and the cache does not.

    Raises:
        UnavailableError: it is missing and may not, or cannot, be pulled.
        ArtifactError: what was pulled is not what was expected.
    """
    entry = catalogue_entry(config)
    if entry is None or entry.get("is_present"):
        return
    if not can_pull:
        raise UnavailableError(
            f"target {config.target}: not in the cache {config.cache_dir}", hint=f"jetspec models pull {config.target}"
        )
    registry.model_store().pull(config.target, Path(config.cache_dir), on_progress)
