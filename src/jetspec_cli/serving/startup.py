"""What happens in the serving process before an engine loads: which engine, and is the target there.

Engines and the model store are reached through the registry only. Knows nothing of printing.
"""

from dataclasses import replace
from pathlib import Path

from jetspec_engine import registry
from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import ConfigError, UnavailableError


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


def refuse_missing_models(config: ServeConfig) -> None:
    """Find what a server needs without downloading anything.

    Raises:
        ArtifactError: a model is missing (the hint says how to pull it), or the two do not belong together.
    """
    head = config.head if config.drafter == "head" else None
    registry.model_store().inspect(config.target, head, Path(config.cache_dir))
