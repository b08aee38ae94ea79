"""What is gathered and checked while a watched request runs, forward by forward.

Knows forwards and the checks; nothing of engines or threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from jetspec_engine.forensics.arithmetic import Committed, Source, check_arithmetic
from jetspec_engine.forensics.findings import Finding, check_layout, check_rows
from jetspec_engine.forensics.watch import Forward


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to decode again, and which token is in doubt.

    Attributes:
        input_ids: the prompt.
        max_new_tokens: as in the run in doubt.
        position: index into the emitted tokens.
        emitted: what that run emitted, to see whether it repeats itself; empty when unknown.
        has_reference: also check every operation's arithmetic, which needs the weights once more.
    """

    input_ids: tuple[int, ...]
    max_new_tokens: int
    position: int
    emitted: tuple[int, ...] = ()
    has_reference: bool = True


@dataclass
class Case:
    """What is gathered while the request runs. Filled on the engine's thread.

    Attributes:
        committed, stored: keys and values of committed positions, as computed and as stored.
        findings: the first of each tensor.
        pair: rows used and expected of the first operation beyond its rounding.
        rounds: every forward, in order.
        decisive: the one that chose the token in doubt, else the last one.
        is_settled: whether the token in doubt is chosen; nothing is checked after it.
        num_checked_rows: rows whose every operation was checked.
        failure: of the checks themselves, or an empty string.
    """

    question: Question
    source: Source | None
    windows: Sequence[int | None]
    committed: Committed = field(default_factory=Committed)
    stored: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    pair: tuple[Tensor, Tensor] | None = None
    rounds: list[Forward] = field(default_factory=list)
    decisive: Forward | None = None
    is_settled: bool = False
    num_checked_rows: int = 0
    failure: str = ""

    def on_commit(self, forward: Forward) -> None:
        """Check one forward. Never raises: the request that is watched must not notice."""
        try:
            self._check(forward)
        except Exception as error:
            self.failure = self.failure or f"{type(error).__name__}: {error}"

    def number(self, forward: Forward) -> int:
        """Return a forward's round; the prompt's last chunk is round 0, chunks before it are negative."""
        first = next((f for f in self.rounds if f.length + f.tree.num_nodes >= len(self.question.input_ids)), None)
        return forward.index - (first.index if first is not None else forward.index + 1)

    def _check(self, forward: Forward) -> None:
        assert forward.kept is not None
        path = list(forward.path or ())
        self.rounds.append(forward)
        if self.is_settled:
            return
        number = self.number(forward)
        first_in_doubt = len(self.question.input_ids) + self.question.position - 1
        self.decisive = forward
        self.is_settled = forward.length <= first_in_doubt < forward.length + len(path)
        if self.stored:
            keys, values = (torch.cat([pair[side] for pair in self.stored], 2) for side in (0, 1))
            self._note(check_rows("cache", forward, number, forward.cached, (keys, values)))
        self._note(check_layout(forward, number, self.windows))
        right = (forward.keys[:, :, path], forward.values[:, :, path])
        self._note(check_rows("commit", forward, number, forward.kept, right))
        rows = range(forward.tree.num_nodes) if self.is_settled else path
        if self.source is not None and self.pair is None:
            self.num_checked_rows += len(rows)
            for finding, used, expected in check_arithmetic(self.source, forward, number, self.committed, rows):
                self.findings.append(finding)
                self.pair = (used, expected)
                break
        self.stored.append(forward.kept)
        self.committed.append(forward)
        if not self.is_settled:
            # What only the decisive round's evidence needs; a long text would hold it for every token.
            forward.layers, forward.cached = [], forward.kept

    def _note(self, found: list[Finding]) -> None:
        known = {finding.tensor for finding in self.findings}
        self.findings += [finding for finding in found if finding.tensor not in known]
