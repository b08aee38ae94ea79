"""What every scripted drafter shares: sessions that remember ids, recorded texts, and the making of valid candidates.

Stand-ins need no weights and no hidden states; they exist so that losslessness can be tested with drafts of every
kind. Knows nothing of the target.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from jetspec_engine.config import check_integer, check_keys
from jetspec_engine.errors import ConfigError
from jetspec_engine.protocol import Candidates, SlotRegion
from jetspec_engine.records import GenerateRequest

WHERE = "drafter_options"
NEVER = float("-inf")

Row = Sequence[tuple[int, float]]
"""One depth: (token id, log-probability), likeliest first."""


@dataclass
class StandInSession:
    """One sequence.

    Attributes:
        request: as opened.
        token_ids: committed ids, prompt included.
        expected_ids: the recorded prompt and continuation, empty when the prompt was not recorded.
        num_rounds: drafts made so far.
    """

    request: GenerateRequest
    expected_ids: tuple[int, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    num_rounds: int = 0

    @property
    def length(self) -> int:
        """Committed positions."""
        return len(self.token_ids)

    def right_token(self, depth: int) -> int | None:
        """Return the recorded token ``depth`` positions after the anchor (depth >= 1), None beyond the recording."""
        position = self.length + depth
        return self.expected_ids[position] if position < len(self.expected_ids) else None

    def close(self) -> None:
        """Forget the ids."""
        self.token_ids.clear()


class StandIn(ABC):
    """A drafter without weights. Implements ``protocol.Drafter`` but for what it guesses.

    Args:
        depth: D.
        vocab_size: V; every token offered is below it.
        options: plain data, checked by the subclass; ``recordings`` everywhere is a list of
            ``{"prompt_ids": [...], "continuation_ids": [...]}``, and a prompt without one has no right tokens.

    Raises:
        ConfigError: unknown or bad options.
    """

    needs_hidden = False
    option_names: tuple[str, ...] = ("recordings",)

    def __init__(self, *, depth: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        check_integer("depth", depth, 1, 4096)
        check_integer("vocab_size", vocab_size, 2, 2**31 - 1)
        check_keys(WHERE, options, self.option_names)
        self.depth, self.vocab_size = depth, vocab_size
        self._recorded = _read_recordings(options.get("recordings", ()), vocab_size)

    @abstractmethod
    def guess(self, session: StandInSession, anchor: int, width: int) -> Sequence[Row]:
        """Return up to D rows of up to ``width`` distinct tokens for the positions after the anchor."""

    def open(self, request: GenerateRequest, region: SlotRegion) -> StandInSession:  # noqa: ARG002 (no slot state)
        """Begin a sequence."""
        return StandInSession(request, self._recorded.get(tuple(request.input_ids), ()))

    def extend(self, session: StandInSession, token_ids: Sequence[int], hidden: Any) -> None:  # noqa: ARG002
        """Append committed ids; hidden states are ignored."""
        session.token_ids.extend(token_ids)

    def propose(self, sessions: Sequence[StandInSession], anchors: Sequence[int], width: int) -> list[Candidates]:
        """Return (D, width) candidates per session; what ``guess`` leaves out is marked never to be used."""
        offers = []
        for session, anchor in zip(sessions, anchors, strict=True):
            offers.append(self._candidates(self.guess(session, anchor, width), width))
            session.num_rounds += 1
        return offers

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:  # noqa: ARG002
        """There is no state in slots, so every prefix is there."""
        return True

    def adopt_prefix(self, session: StandInSession, token_ids: Sequence[int]) -> None:
        """Begin the session after cached ids."""
        session.token_ids[:] = token_ids

    def _candidates(self, rows: Sequence[Row], width: int) -> Candidates:
        tokens = torch.zeros(self.depth, width, dtype=torch.int64)
        logprobs = torch.full((self.depth, width), NEVER)
        for depth, row in enumerate(rows[: self.depth]):
            for rank, (token, logprob) in enumerate(row[:width]):
                tokens[depth, rank], logprobs[depth, rank] = token, logprob
        return Candidates(tokens=tokens, logprobs=logprobs)


def decoys(token: int, count: int, vocab_size: int) -> list[int]:
    """Return up to ``count`` distinct ids that are not ``token``."""
    return [(token + 1 + step) % vocab_size for step in range(min(count, vocab_size - 1))]


def read_ids(name: str, value: Any, vocab_size: int) -> tuple[int, ...]:
    """Return a list of token ids as a tuple. Raises ConfigError naming the first bad one."""
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name}: {str(value)[:80]!r}, expected a list of token ids")
    for index, token in enumerate(value):
        check_integer(f"{name}[{index}]", token, 0, vocab_size - 1)
    return tuple(value)


def _read_recordings(value: Any, vocab_size: int) -> dict[tuple[int, ...], tuple[int, ...]]:
    name = f"{WHERE}.recordings"
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name}: {str(value)[:80]!r}, expected a list of recordings")
    recorded: dict[tuple[int, ...], tuple[int, ...]] = {}
    for index, entry in enumerate(value):
        where = f"{name}[{index}]"
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{where}: {str(entry)[:80]!r}, expected prompt_ids and continuation_ids")
        check_keys(where, entry, ("prompt_ids", "continuation_ids"))
        prompt = read_ids(f"{where}.prompt_ids", entry.get("prompt_ids"), vocab_size)
        text = prompt + read_ids(f"{where}.continuation_ids", entry.get("continuation_ids"), vocab_size)
        if recorded.setdefault(prompt, text) != text:
            raise ConfigError(
                f"{where}.prompt_ids: recorded before with another continuation, expected each prompt once"
            )
    return recorded
