"""The seams between the parts: what a target, a drafter, an engine and a backend must offer.

Standard library only; tensors appear as ``Any`` here and with shapes in the docstrings. Nothing in this file knows
an implementation. Shape letters as in ``records``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.records import (
    Availability,
    GenerateRequest,
    PositionScore,
    Progress,
    Recording,
    ServeEvent,
    StepEvent,
)

# ---------------------------------------------------------------------------------------------- tree and drafts


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """What a drafter offers for the D positions after the anchor.

    Attributes:
        tokens: (D, W) int64 token ids per depth, likeliest first, ties by lower id.
        logprobs: (D, W) float32 log-probabilities in nats; -inf marks a candidate never to be used.
    """

    tokens: Any
    logprobs: Any


class TreeBuilder(Protocol):
    """Turns candidates into a tree: ``builder(anchor, candidates, config) -> DraftTree`` (see ``tree.record``)."""

    def __call__(self, anchor: int, candidates: Candidates, config: TreeConfig) -> Any: ...


# ---------------------------------------------------------------------------------------------- per-sequence state


@dataclass(frozen=True, kw_only=True)
class SlotRegion:
    """A contiguous run of cache slots lent to one sequence; position p of the sequence lives in slot start + p.

    The same region addresses the target's per-layer state and the draft head's. A target with recurrent layers
    keys its states by ``start``.
    """

    start: int
    capacity: int


@dataclass(frozen=True, kw_only=True)
class VerifyItem:
    """One sequence's rows in a target forward.

    Attributes:
        region: the sequence's slots.
        length: committed tokens; the tree's root sits at position ``length``.
        tree: DraftTree of N nodes. Prefill is a chain tree over a chunk of the prompt.
        logits_from: first node whose logits are wanted (0 for a verify, N - 1 for a prompt's last chunk, N for none).
    """

    region: SlotRegion
    length: int
    tree: Any
    logits_from: int = 0


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """Attributes:
    logits: (N - logits_from, V) in the target's dtype.
    hidden: (N, T_l * E) tapped hidden states, concatenated in tap order; None without taps.
    """

    logits: Any
    hidden: Any


class TargetModel(Protocol):
    """A frozen target with per-layer state for many sequences.

    The *invariant verify* holds: a node's logits and state have the same bits however many rows the forward has,
    wherever the committed prefix ends, and whichever siblings sit beside it.
    """

    vocab_size: int
    hidden_size: int
    max_seq_len: int
    num_slots: int

    def verify(self, items: Sequence[VerifyItem]) -> list[VerifyResult]:
        """Run one forward over all items' nodes under their ancestor masks; writes state for every node."""
        ...

    def commit(self, region: SlotRegion, length: int, path: Sequence[int]) -> None:
        """Keep the state of the path's nodes (node indices from the root on, each the parent of the next) as
        positions ``length .. length + len(path) - 1`` and drop every other node's. Called once a round."""
        ...

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        """Copy the state of the first ``length`` positions; False when this state cannot be cut there."""
        ...


class DraftSession(Protocol):
    """One sequence's state inside a drafter."""

    length: int

    def close(self) -> None:
        """Forget the sequence."""
        ...


class Drafter(Protocol):
    """Proposes candidates for the D positions after the anchor.

    A drafter may be wrong as often as it likes: that costs acceptance, never text.
    """

    depth: int
    needs_hidden: bool

    def open(self, request: GenerateRequest, region: SlotRegion) -> DraftSession:
        """Begin a sequence; its slots are those of the region."""
        ...

    def extend(self, session: DraftSession, token_ids: Sequence[int], hidden: Any) -> None:
        """Append committed positions: their ids and (T, T_l * E) tapped hidden states (None unless needs_hidden)."""
        ...

    def propose(self, sessions: Sequence[DraftSession], anchors: Sequence[int], width: int) -> list[Candidates]:
        """Return (D, width) candidates per session. The anchor is emitted but not committed yet."""
        ...

    def copy_prefix(self, source: SlotRegion, destination: SlotRegion, length: int) -> bool:
        """Copy the drafter's state of a cached prefix; called before ``open`` when a prefix is reused."""
        ...

    def adopt_prefix(self, session: DraftSession, token_ids: Sequence[int]) -> None:
        """Declare the first ``len(token_ids)`` positions present (copied or kept from an earlier request)."""
        ...


# ---------------------------------------------------------------------------------------------- text


class Tokenizer(Protocol):
    """Text to ids and back."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def encode(self, text: str) -> list[int]:
        """Encode a raw prompt as the model's own tokenizer does, with its default special tokens."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decode ids; incomplete UTF-8 shows as U+FFFD."""
        ...

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """Return the bytes one token adds to a text; empty for a skipped special token or an unknown id."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Apply the chat template with a generation prompt. Raises RequestError on messages it refuses."""
        ...

    def encode_rendered(self, text: str) -> list[int]:
        """Encode text that already holds its special tokens (a rendered chat)."""
        ...


# ---------------------------------------------------------------------------------------------- engine


class CompletionEngine(Protocol):
    """Decodes requests on its own thread. Every method may be called from any thread."""

    tokenizer: Tokenizer

    def submit(self, request: GenerateRequest, on_event: Callable[[StepEvent], None]) -> None:
        """Queue a request; events arrive on the engine's thread, the last one with ``finish``.

        Raises:
            RequestError: the request can never run (too long, bad ids).
            BusyError: the queue is full.
        """
        ...

    def abort(self, request_id: str) -> bool:
        """Stop a request (the empty id: all); its last event has finish kind "abort". False if unknown."""
        ...

    def flush_cache(self) -> None:
        """Drop every cached prefix. Raises BusyError while requests run."""
        ...

    def set_tree(self, tree: TreeConfig) -> TreeConfig:
        """Switch the tree and return it with its budget resolved. Raises BusyError, ConfigError."""
        ...

    def score(self, input_ids: Sequence[int], start: int, top_k: int) -> list[PositionScore]:
        """Teacher-force ids in one pass and report positions ``start..`` (start >= 1). Raises RequestError."""
        ...

    def record(self, request: GenerateRequest, width: int) -> Recording:
        """Decode a request alone and plainly, keeping what the drafter offers at every token.

        Raises RequestError, BusyError while others run, ConfigError (width, or nothing to keep), EngineError.
        """
        ...

    def profile(self, request: GenerateRequest, num_rounds: int) -> Mapping[str, Any]:
        """Decode a request alone and profile its rounds: phase_s, round_s, kernels, floor, trace (plain data).

        Raises RequestError, BusyError while others run, EngineError.
        """
        ...

    def info(self) -> Mapping[str, Any]:
        """Say what runs: engine, version, target, head, drafter, dtype, device, attention, tree, max_tree,
        draft_depth, page_size, max_seq_len, tp_size, is_graph, row policy."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Totals since start: requests_{finished,aborted,failed}, prompt/cached/emitted tokens, rounds,
        proposed/correct drafts, graph_rounds, eager_rounds; gauges: running, waiting, pages_{total,free,cached}."""
        ...

    def close(self) -> None:
        """Abort everything, stop the thread, free memory."""
        ...


class EngineBackend(Protocol):
    """One way to run a server, found by name in the registry."""

    name: str

    def availability(self, config: ServeConfig) -> Availability:
        """Say whether this backend can run here, without importing what may be missing."""
        ...

    def serve(self, config: ServeConfig, on_event: Callable[[ServeEvent], None]) -> None:
        """Pull, load, listen, emit a "ready" event, and block until the process is told to stop (SIGINT, SIGTERM).

        Whatever is cheap to find wrong is found before anything is pulled.

        Raises:
            UnavailableError: a missing extra or device, the port is taken, or a model cannot be downloaded.
            KeyboardInterrupt: told to stop before it was ready.
            ArtifactError: the model cannot be loaded, or head and target do not belong together.
            EngineError: the server died.
        """
        ...


# ---------------------------------------------------------------------------------------------- models and training


class ModelStore(Protocol):
    """Finds, pulls and inspects models."""

    def list(self, cache_dir: Path) -> list[Mapping[str, Any]]:
        """One mapping a catalogue or cached model: name, kind, is_present, path, size_bytes, licence, source."""
        ...

    def pull(self, name: str, cache_dir: Path, on_progress: Callable[[Progress], None]) -> Path:
        """Make a model present and return its folder; resumable; offline when already there.

        Raises:
            ArtifactError: no such model, or a checksum that does not match.
            UnavailableError: it has to be downloaded and cannot be.
        """
        ...

    def inspect(self, target: str, head: str | None, cache_dir: Path) -> Mapping[str, Any]:
        """Check that a target and a head belong together and return both configurations; a target alone for None."""
        ...


class HeadTrainer(Protocol):
    """Distils a draft head; ``options`` are documented in ``training``."""

    def train(self, options: Mapping[str, Any], on_progress: Callable[[Progress], None]) -> Mapping[str, Any]: ...
