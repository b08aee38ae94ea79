"""What a gate run leaves behind: one record a generation, one a comparison, one a failed check. Plain data only."""

from dataclasses import asdict, dataclass, field
from typing import Any

from jetspec_cli.serving.generation import Generation

IDENTICAL = "identical"
NEAR_TIE = "near_tie"
MISMATCH = "mismatch"
UNSTABLE_ORACLE = "unstable_oracle"
FAILED = "failed"
VERDICTS = (IDENTICAL, NEAR_TIE, MISMATCH, UNSTABLE_ORACLE, FAILED)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One prompt decoded once.

    Attributes:
        dtype: of the server, as it says.
        role: oracle or candidate.
        label: the oracle's name, or the cell's label.
        tree: what the server was switched to; None when it runs as it was started.
        attempt: 0 for the first time; oracles run again to see whether they are stable.
        is_cache_flushed: False when the cache's state is unknown.
        generation: the answer, or None when the request failed.
        error: why it failed, or an empty string.
    """

    dtype: str
    prompt_id: str
    text_class: str
    role: str
    label: str
    tree: dict[str, Any] | None
    attempt: int
    is_cache_flushed: bool
    generation: Generation | None = None
    error: str = ""

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One candidate run held against one oracle run.

    Attributes:
        cell, oracle: labels of the two sides.
        verdict: one of VERDICTS.
        compared: token_ids or text.
        num_tokens: tokens compared, when ids were.
        detail: one line, for every verdict but identical.
        mismatch: the report, for mismatch, near_tie and unstable_oracle.
    """

    dtype: str
    prompt_id: str
    text_class: str
    cell: str
    oracle: str
    attempt: int
    verdict: str
    compared: str = ""
    num_tokens: int = 0
    detail: str = ""
    mismatch: dict[str, Any] | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A run that failed a check of its own, whatever it was compared with.

    Attributes:
        check: accounting (the counters contradict each other), teacher_forced (a token is not the argmax) or a probe.
        verdict: mismatch, near_tie or failed.
        detail: one line.
        report: for teacher_forced, every wrong token in order.
    """

    check: str
    dtype: str
    prompt_id: str
    label: str
    verdict: str
    detail: str
    report: list[dict[str, Any]] | None = None

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


@dataclass(kw_only=True)
class Record:
    """Everything so far. Mutated by the runner, read by the document.

    Attributes:
        runs, comparisons, faults: in the order they happened.
        num_probed: prompts that each probe was run on.
        num_teacher_forced: emitted tokens checked against the target's argmax.
        servers: what each server says of itself, with its role, dtype and how it came to be there.
        notes: things a reader must know, each once.
    """

    runs: list[Run] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    num_probed: dict[str, int] = field(default_factory=dict)
    num_teacher_forced: int = 0
    servers: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)
