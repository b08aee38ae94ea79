"""Decodes a prompt again under observation, up to a token, and says which tensor first went wrong.

Knows engines, watching and the checks; nothing of gates, verdicts or files. The engine must be idle, and is switched
to the tree in question by the caller.
"""

import itertools
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.errors import BusyError, EngineError, UnavailableError
from jetspec_engine.forensics.arithmetic import ARITHMETIC, Source
from jetspec_engine.forensics.case import Case, Question
from jetspec_engine.forensics.findings import as_plain
from jetspec_engine.forensics.pack import evidence, reference_view
from jetspec_engine.forensics.text import check_text, describe_round
from jetspec_engine.forensics.watch import Recorder, watching
from jetspec_engine.records import GenerateRequest, SamplingParams, StepEvent

PATIENCE_S = 600.0
_NAMES = itertools.count()
_ONE_AT_A_TIME = threading.Lock()


@dataclass(kw_only=True)
class Examination:
    """What was found.

    Attributes:
        report: plain data; see ``docs/forensics.md``.
        tensors: evidence by name, on the CPU.
    """

    report: dict[str, Any]
    tensors: dict[str, Tensor]


def examine(engine: EmbeddedEngine, source: Callable[[], Source], question: Question) -> Examination:
    """Decode the question's prompt on an empty cache and check every step of it up to the token in doubt.

    Args:
        engine: idle; nobody else may use it meanwhile.
        source: makes configuration and weights of the twin; called once, outside the engine's thread.
        question: what to decode and to check.

    Raises:
        UnavailableError: a target that cannot be watched.
        BusyError: requests are running, or another examination is.
        RequestError: the engine refuses the prompt.
        EngineError: the request failed.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise BusyError("examine: another examination is running", hint="retry later")
    try:
        return _examine(engine, source, question)
    finally:
        _ONE_AT_A_TIME.release()


def _examine(engine: EmbeddedEngine, source: Callable[[], Source], question: Question) -> Examination:
    target = engine.run_idle("examine", lambda target: target)
    if not isinstance(target, DecoderTarget):
        raise UnavailableError(f"examine: no forensics for a {type(target).__name__}")
    made = source()
    if not made.config.is_dense:
        raise UnavailableError("examine: no forensics for targets with experts or recurrent layers")
    case = Case(question, made if question.has_reference else None, made.config.sliding_windows)
    recorder = Recorder(target, case.on_commit)
    engine.flush_cache()
    with ExitStack() as stack:
        engine.run_idle(
            "examine", lambda target: stack.enter_context(watching(target, recorder, made.config.num_layers))
        )
        events = _decode(engine, question)
    emitted = tuple(token for event in events for token in event.token_ids)
    eos = frozenset(engine.tokenizer.eos_token_ids)
    check_text(case, emitted, eos)
    first = min(case.findings, key=lambda finding: finding.order, default=None)
    report: dict[str, Any] = {
        "num_common": len(question.input_ids) + question.position,
        "emitted": list(emitted),
        "repeats": not question.emitted or emitted == question.emitted,
        "dtype": str(target.dtype).removeprefix("torch."),
        "finding": as_plain(first),
        "num_findings": len(case.findings),
        "findings": [finding.to_mapping() for finding in sorted(case.findings, key=lambda one: one.order)],
        "num_checked_rows": case.num_checked_rows,
        "incomplete": recorder.problem or case.failure,
        "round": None if case.decisive is None else describe_round(case, case.decisive, emitted),
    }
    with torch.inference_mode():
        tensors = evidence(case.decisive, case.stored, case.pair if first and first.tensor in ARITHMETIC else None)
        if case.source is not None and case.decisive is not None:
            report["reference"], row = reference_view(case.source, question, emitted)
            tensors["reference.logits"] = row
    return Examination(report=report, tensors=tensors)


def _decode(engine: EmbeddedEngine, question: Question) -> list[StepEvent]:
    events: list[StepEvent] = []
    done = threading.Event()

    def on_event(event: StepEvent) -> None:
        events.append(event)
        if event.finish is not None:
            done.set()

    name = f"examine-{next(_NAMES)}"
    sampling = SamplingParams(max_new_tokens=question.max_new_tokens)
    engine.submit(GenerateRequest(request_id=name, input_ids=question.input_ids, sampling=sampling), on_event)
    if not done.wait(PATIENCE_S):
        engine.abort(name)
        raise EngineError(f"examine: not done after {PATIENCE_S:.0f} s")
    finish = events[-1].finish
    if finish is not None and finish.kind in ("error", "abort"):
        raise EngineError(f"examine: the request failed: {finish.message}")
    return events


def question_of(fields: Mapping[str, Any]) -> Question:
    """Make a question of plain data, as it comes over HTTP."""
    lists = {name: tuple(fields[name]) for name in ("input_ids", "emitted") if name in fields}
    return Question(**{**fields, **lists})
