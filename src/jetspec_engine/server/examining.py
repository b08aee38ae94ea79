"""Answers ``POST /jetspec/examine``: the running engine examined, with its weights read once more for the reference.

Knows where a served target's folder is; nothing of HTTP.
"""

from collections.abc import Mapping
from typing import Any

import torch

from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.errors import UnavailableError
from jetspec_engine.forensics.arithmetic import Source
from jetspec_engine.forensics.examine import examine, question_of
from jetspec_engine.forensics.pack import to_bytes
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.weights import load_weights
from jetspec_engine.protocol import CompletionEngine


def answer(engine: CompletionEngine, fields: Mapping[str, Any]) -> bytes:
    """Examine the engine and return the evidence as a safetensors file.

    Args:
        engine: idle.
        fields: of ``schema_jetspec.ExamineBody``.

    Raises:
        UnavailableError: an engine that cannot be watched.
        BusyError: requests are running.
        RequestError: the engine refuses the prompt.
        EngineError: the request failed.
    """
    if not isinstance(engine, EmbeddedEngine):
        raise UnavailableError(f"examine: no forensics for a {type(engine).__name__}")
    info = engine.info()

    def source() -> Source:
        config = DecoderConfig.from_folder(info["target_path"])
        weights = load_weights(info["target_path"], config, dtype=getattr(torch, info["dtype"]))
        return Source(config=config, weights=weights)

    found = examine(engine, source, question_of(fields))
    return to_bytes(found.report, found.tensors)
