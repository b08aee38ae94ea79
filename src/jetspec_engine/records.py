"""Plain records that travel between engine, server and command line. Standard library only.

Shape letters, used the same way everywhere: B batch, T tokens, N tree nodes (root = node 0), D tree depth,
W tree width, V vocabulary, E hidden size, H heads, L layers.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """What a request asks of decoding. Only greedy decoding is drafted; temperature > 0 is refused upstream.

    Attributes:
        max_new_tokens: cap on emitted tokens, >= 0.
        min_new_tokens: EOS and stops are not honoured before this many tokens (their logits are masked).
        stop: stop strings; the text ends before the first one.
        stop_token_ids: token ids that end the text, beside the model's EOS.
        ignore_eos: decode through EOS.
        skip_special_tokens: leave special tokens out of the text.
        no_stop_trim: keep the stop string in the text.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One prompt to decode. ``logprobs_top_k`` > 0 asks for the top candidates of every emitted token."""

    request_id: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs_top_k: int | None = None


@dataclass(frozen=True, kw_only=True)
class FinishReason:
    """Why a request ended.

    Attributes:
        kind: stop, length, abort or error.
        matched: the stop string or token id, for kind stop.
        message: for kind abort and error.
    """

    kind: str
    matched: str | int | None = None
    message: str = ""


@dataclass(kw_only=True)
class RequestStats:
    """Counters of one request; identities: sum(histogram) == rounds, sum(i * histogram[i]) == emitted tokens.

    The first emitted token comes from the prefill forward and counts as a round of one token.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        num_cached_tokens: of those, reused from the prefix cache.
        num_emitted_tokens: tokens delivered.
        num_rounds: target verify forwards, the prefill's one included.
        accept_histogram: entry i counts rounds that emitted i tokens, i = 0..D + 1.
        num_proposed_drafts: draft nodes verified (root not counted).
        num_correct_drafts: drafts on the accepted paths.
        expected_tokens: tokens those rounds would have emitted if every draft were as likely as the drafter says;
            NaN where it does not say (the linear path).
        phase_s: seconds by phase: prefill, draft, build, verify, accept, commit.
        queue_s, prefill_s, decode_s: wall seconds.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_emitted_tokens: int = 0
    num_rounds: int = 0
    accept_histogram: list[int] = field(default_factory=list)
    num_proposed_drafts: int = 0
    num_correct_drafts: int = 0
    expected_tokens: float = 0.0
    phase_s: dict[str, float] = field(default_factory=dict)
    round_s: list[float] = field(default_factory=list)
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def accept_length(self) -> float:
        """Emitted tokens per round, bonus included; 0.0 before the first round."""
        return self.num_emitted_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def expected_accept_length(self) -> float:
        """Tokens per round by the drafter's own account; 0.0 before the first round."""
        return self.expected_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def accept_rate(self) -> float:
        """Correct drafts per proposed draft, in [0, 1]; 0.0 when nothing was proposed."""
        return self.num_correct_drafts / self.num_proposed_drafts if self.num_proposed_drafts else 0.0


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """An emitted token's logprob (nats) and the top candidates as (token id, logprob), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepEvent:
    """What one round gave one request. The last event has ``finish`` and ``stats``."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    stats: RequestStats | None = None


@dataclass(frozen=True, kw_only=True)
class PositionScore:
    """Teacher-forced look at one position: the token there, and the target's top logits given its prefix.

    Attributes:
        position: index into the scored ids.
        token_id: the id at that position.
        logit, logprob: of that id.
        top: (token id, logit, logprob), best first, ties by lower id.
    """

    position: int
    token_id: int
    logit: float
    logprob: float
    top: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The target's greedy answer to one prompt, and what the drafter offers before each of its tokens.

    A lossless engine emits this text whatever it drafts, so every tree setting can be replayed on it.

    Attributes:
        num_prompt_tokens: tokens of the prompt.
        token_ids: A emitted ids, the prefill's first.
        cap: most tokens the answer could have had; no draft reaches further.
        shape: (A - 1, D, W); entry i is what is offered when token i is the anchor.
        tokens: ids, little-endian int32, likeliest first.
        logprobs: little-endian float32, nats; -inf for a candidate never to be used.
    """

    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    cap: int
    shape: tuple[int, int, int]
    tokens: bytes
    logprobs: bytes

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data, the arrays in base64."""
        arrays = {name: b64encode(getattr(self, name)).decode("ascii") for name in ("tokens", "logprobs")}
        return {**asdict(self), "token_ids": list(self.token_ids), "shape": list(self.shape), **arrays}

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Self:
        """Read what ``to_mapping`` made. Raises ValueError when sizes do not agree, KeyError when a field is gone."""
        made = cls(
            num_prompt_tokens=int(given["num_prompt_tokens"]),
            token_ids=tuple(given["token_ids"]),
            cap=int(given["cap"]),
            shape=tuple(given["shape"]),
            tokens=b64decode(given["tokens"]),
            logprobs=b64decode(given["logprobs"]),
        )
        positions, depth, width = made.shape
        size = 4 * positions * depth * width
        if positions != max(0, len(made.token_ids) - 1) or not len(made.tokens) == len(made.logprobs) == size:
            raise ValueError(f"recording: shape {made.shape} does not fit {len(made.token_ids)} tokens and its arrays")
        return made


@dataclass(frozen=True, kw_only=True)
class ReplayedRound:
    """One round that a live engine would have run: nodes verified, tokens emitted, drafts accepted."""

    num_nodes: int
    num_emitted: int
    num_correct: int


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether a part can run here, what is missing and what to do about it."""

    is_available: bool
    missing: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A long job's report: done of total (in unit), with a short label. total 0 means unknown."""

    label: str
    done: int
    total: int
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class ServeEvent:
    """Something a starting or running server tells its caller.

    Attributes:
        kind: progress (message, progress), ready (url and info), log (message), stopped.
        message: one line.
        progress: of a long job, as often as it reports.
        info: for ready, the same document as ``/get_server_info``'s ``jetspec`` key.
    """

    kind: str
    message: str = ""
    progress: Progress | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, progress: Progress) -> "ServeEvent":
        """Return a job's report as an event."""
        return cls(kind="progress", message=progress.label, progress=progress)
