"""What happens in the serving process before an engine loads: which engine, and is the target there.

Engines and the model store are reached through the registry only. Knows nothing of printing.
"""

from dataclasses import replace
from pathlib import Path

from jetspec_engine import registry
from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import ArtifactError, ConfigError, UnavailableError


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


def is_target_missing(config: ServeConfig) -> bool:
    """Say whether the target is one of the catalogue's that has not been pulled yet."""
    entries = registry.model_store().list(Path(config.cache_dir))
    is_missing = any(entry["name"] == config.target and not entry["is_present"] for entry in entries)
    # A folder of that name goes first, as everywhere a model is named.
    return is_missing and not Path(config.target).is_dir()


def refuse_missing_models(config: ServeConfig) -> None:
    """Find both models without downloading anything.

    Raises:
        ArtifactError: one is missing (the hint says how to pull it), or the two do not belong together.
    """
    if config.drafter == "head":
        registry.model_store().inspect(config.target, config.head, Path(config.cache_dir))
    elif is_target_missing(config):
        hint = f"jetspec models pull {config.target}"
        raise ArtifactError(f"model {config.target}: not in the cache {config.cache_dir}", hint=hint)
