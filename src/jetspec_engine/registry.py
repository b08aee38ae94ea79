"""Names to implementations, resolved lazily: listing imports nothing heavy.

Each entry is ``"module:attribute"``; the attribute is called with no arguments (services, backends) or returned
as it is (builders). Knows no implementation beyond its address.
"""

import importlib
from typing import Any

from jetspec_engine.config import did_you_mean
from jetspec_engine.errors import ConfigError, UnavailableError
from jetspec_engine.protocol import EngineBackend, HeadTrainer, ModelStore, TreeBuilder

BACKENDS = {
    "embedded": "jetspec_engine.server.backend:EmbeddedBackend",
    "sglang": "jetspec_engine.sglang_backend.backend:SglangBackend",
}
TREE_BUILDERS = {
    "best_first": "jetspec_engine.tree.best_first:build_best_first",
    "top2gap": "jetspec_engine.tree.published:build_top2gap",
    "accum_logp": "jetspec_engine.tree.published:build_accum_logp",
}
DRAFTERS = {
    "head": "jetspec_engine.draft.head_drafter:HeadDrafter",
    "scripted": "jetspec_engine.draft.scripted:ScriptedDrafter",
    "replay": "jetspec_engine.draft.scripted:ReplayDrafter",
    "right": "jetspec_engine.draft.scripted:RightDrafter",
    "wrong": "jetspec_engine.draft.scripted:WrongDrafter",
    "random": "jetspec_engine.draft.scripted:RandomDrafter",
}
MODEL_STORE = "jetspec_engine.embedded.pair:PairStore"
HEAD_TRAINER = "jetspec_engine.training.trainer:Trainer"
EXTRA_OF_PACKAGE = {
    "torch": "embedded", "transformers": "embedded", "tokenizers": "embedded", "safetensors": "embedded",
    "gguf": "embedded", "fastapi": "embedded", "uvicorn": "embedded", "sglang": "sglang", "flashinfer": "sglang",
    "matplotlib": "report",
}


def load(address: str) -> Any:
    """Import ``"module:attribute"``.

    Raises:
        UnavailableError: a third-party package is missing; the hint names the extra that brings it.
    """
    module_name, _, attribute = address.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "jetspec_engine"):
            raise
        extra = EXTRA_OF_PACKAGE.get(package, "embedded")
        raise UnavailableError(f"missing package: {package}", hint=f"pip install 'jetspec[{extra}]'") from error
    return getattr(module, attribute)


def find(kind: str, table: dict[str, str], name: str) -> Any:
    """Return the implementation registered under name. Raises ConfigError with the nearest name."""
    if name not in table:
        names = list(table)
        raise ConfigError(f"{kind}: {name!r}, expected one of {', '.join(names)}", hint=did_you_mean(name, names))
    return load(table[name])


def backend(name: str) -> EngineBackend:
    """Return the backend called name."""
    made: EngineBackend = find("engine", BACKENDS, name)()
    return made


def tree_builder(rule: str) -> TreeBuilder:
    """Return the CPU builder of a tree rule."""
    made: TreeBuilder = find("tree.rule", TREE_BUILDERS, rule)
    return made


def drafter_class(name: str) -> Any:
    """Return the drafter class called name; constructors differ, see ``embedded.assembly``."""
    return find("drafter", DRAFTERS, name)


def model_store() -> ModelStore:
    """Return the model store."""
    made: ModelStore = load(MODEL_STORE)()
    return made


def head_trainer() -> HeadTrainer:
    """Return the head trainer."""
    made: HeadTrainer = load(HEAD_TRAINER)()
    return made
