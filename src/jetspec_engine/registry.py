"""Names to what the command line needs of the engine, resolved lazily: listing imports nothing heavy.

Each entry is ``"module:attribute"``, called with no arguments. Knows no implementation beyond its address.
"""

import importlib
from collections.abc import Callable
from typing import Any

from jetspec_engine.config import TreeConfig, check_choice
from jetspec_engine.errors import UnavailableError
from jetspec_engine.protocol import EngineBackend, HeadTrainer, ModelStore
from jetspec_engine.records import Recording, ReplayedRound

BACKENDS = {
    "embedded": "jetspec_engine.server.backend:EmbeddedBackend",
    "sglang": "jetspec_engine.sglang_backend.backend:SglangBackend",
}
MODEL_STORE = "jetspec_engine.embedded.pair:PairStore"
HEAD_TRAINER = "jetspec_engine.training.trainer:Trainer"
TREE_STATES = "jetspec_engine.embedded.delta_memory:TreeStates"
SELF_TEST = "jetspec_engine.selftest.kit:SelfTest"
REPLAY = "jetspec_engine.tree.replay:replay"
EXTRA_OF_PACKAGE = {
    "torch": "embedded",
    "numpy": "embedded",
    "tokenizers": "embedded",
    "safetensors": "embedded",
    "gguf": "embedded",
    "fastapi": "embedded",
    "uvicorn": "embedded",
    "sglang": "sglang",
    "flashinfer": "sglang",
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


def backend(name: str) -> EngineBackend:
    """Return the backend called name. Raises ConfigError with the nearest name."""
    check_choice("engine", name, tuple(BACKENDS))
    made: EngineBackend = load(BACKENDS[name])()
    return made


def model_store() -> ModelStore:
    """Return the model store."""
    made: ModelStore = load(MODEL_STORE)()
    return made


def head_trainer() -> HeadTrainer:
    """Return the head trainer."""
    made: HeadTrainer = load(HEAD_TRAINER)()
    return made


def tree_states() -> Any:
    """Return what says how much memory recurrent states take; see ``embedded.delta_memory.TreeStates``."""
    return load(TREE_STATES)()


def self_test() -> Any:
    """Return the engine's seeded faults and where to try them; see ``selftest.kit.SelfTest``."""
    return load(SELF_TEST)()


def replay() -> Callable[[Recording, TreeConfig], list[ReplayedRound]]:
    """Return what scores a tree setting on a recording without a model; see ``tree.replay.replay``."""
    made: Callable[[Recording, TreeConfig], list[ReplayedRound]] = load(REPLAY)
    return made
