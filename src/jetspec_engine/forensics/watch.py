"""Looks into a target while one request runs: what every forward was given, used, computed, stored and committed.

Swaps three attributes of the target and puts them back; the round itself is not changed. Knows what the parts of a
forward are called; deliberately does not know what they should hold.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from jetspec_engine.embedded.attention import cut_heads
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.protocol import SlotRegion, VerifyItem
from jetspec_engine.tree.record import DraftTree


@dataclass(kw_only=True)
class LayerRows:
    """One layer's tensors for N rows, on the CPU: head dimensions in the checkpoint's order, nothing rotated.

    Attributes:
        q: (H, N, head_dim).
        k, v: (KV heads, N, head_dim).
        attention: (N, H * head_dim).
        state: (N, E) after the layer.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    attention: Tensor
    state: Tensor


@dataclass(kw_only=True)
class Forward:
    """One forward of the watched request.

    Attributes:
        index: 0 for the first forward, prompt chunks included.
        length: committed tokens before it.
        tree: its rows.
        logits_from: first row with logits.
        positions: (N,) absolute positions by the rotations that were used; -1 where they are nobody's.
        sees: for each sliding window of the model, (N, length + N) bool: keys a row was allowed to see.
        layers: every layer's tensors.
        logits: (N - logits_from, V) in the target's dtype.
        keys, values: (L, KV heads, N, head_dim) rows as stored.
        cached: the slots' content before the forward, (keys, values) of ``length`` positions.
        path: the committed nodes; None until they are.
        kept: (keys, values) of the path's positions after the commit.
    """

    index: int
    length: int
    tree: DraftTree
    logits_from: int
    positions: NDArray[np.int64]
    sees: dict[int | None, NDArray[np.bool_]]
    layers: list[LayerRows]
    logits: Tensor
    keys: Tensor
    values: Tensor
    cached: tuple[Tensor, Tensor]
    path: tuple[int, ...] | None = None
    kept: tuple[Tensor, Tensor] | None = None


@dataclass
class Recorder:
    """Turns what the target does into ``Forward`` records, told one by one when they are committed.

    Attributes:
        on_commit: called on the engine's thread with a complete record.
        last: the latest record, complete or not.
        problem: why what was seen is not one request's doing, or an empty string.
    """

    target: DecoderTarget
    on_commit: Callable[[Forward], None]
    last: Forward | None = None
    problem: str = ""
    _count: int = 0
    _seen: list[Any] = field(default_factory=list)

    def before(self, items: Sequence[VerifyItem]) -> tuple[Tensor, Tensor] | None:
        """Copy the committed slots of a lone item."""
        if len(items) != 1:
            self.problem = "other requests ran at the same time"
            return None
        self._seen.clear()
        return self._slots(items[0].region, 0, items[0].length)

    def after(self, item: VerifyItem, cached: tuple[Tensor, Tensor], logits: Tensor) -> None:
        """Make the record of a forward."""
        if not self._seen:
            self.problem = "the target's forward does not go through its decoder"
            return
        attend, rows, states = self._seen[-1]
        layers = [LayerRows(**one, state=state.detach().cpu().clone()) for one, state in zip(rows, states, strict=True)]
        keys, values = self._slots(item.region, item.length, item.tree.num_nodes)
        self.last = Forward(
            index=self._count,
            length=item.length,
            tree=item.tree,
            logits_from=item.logits_from,
            positions=self._positions(attend),
            sees=_masks(attend, item),
            layers=layers,
            logits=logits.detach().cpu().clone(),
            keys=keys,
            values=values,
            cached=cached,
        )
        self._count += 1

    def committed(self, region: SlotRegion, length: int, path: Sequence[int]) -> None:
        """Complete the record and hand it on."""
        record = self.last
        if record is None or record.length != length or record.path is not None:
            self.problem = self.problem or "a commit without its forward"
            return
        record.path = tuple(int(node) for node in path)
        record.kept = self._slots(region, length, len(record.path))
        self.on_commit(record)

    def decoder(self, decoder: Any, num_layers: int) -> "WatchedDecoder":
        """Return a decoder that notes what passes through it."""
        return WatchedDecoder(decoder, num_layers, self._seen)

    def _slots(self, region: SlotRegion, first: int, count: int) -> tuple[Tensor, Tensor]:
        begin, state = region.start + first, self.target.state
        keys, values = (x[:, :, begin : begin + count].detach().cpu().clone() for x in (state.keys, state.values))
        return keys, values

    def _positions(self, attend: Any) -> NDArray[np.int64]:
        """Find the rotations that were used in the table of all."""
        table = self.target._rotations
        found = []
        for piece in attend._items:
            for row in piece._rows._rotations.reshape(-1, table.shape[-1]):
                places = (table == row).all(-1).nonzero()
                found.append(int(places[0, 0]) if len(places) else -1)
        return np.array(found, dtype=np.int64)


class WatchedDecoder:
    """A decoder whose layers' tensors are noted as (attention, layers, states), a tuple a forward."""

    def __init__(self, decoder: Any, num_layers: int, seen: list[Any]) -> None:
        self._decoder = decoder
        self._num_layers = num_layers
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def hidden(self, token_ids: Tensor, attend: Any, taps: Sequence[int]) -> tuple[Tensor, list[Tensor]]:
        """Run the decoder's own ``hidden``."""
        rows: list[dict[str, Tensor]] = []

        x, states = self._decoder.hidden(token_ids, WatchedAttention(attend, rows), range(self._num_layers))
        self._seen.append((attend, rows, [state[: attend.num_used_rows] for state in states]))
        return x, [states[tap] for tap in taps]


class WatchedAttention:
    """A forward's attention whose operands and result are noted, a mapping a layer; padding rows are left out."""

    def __init__(self, attend: Any, rows: list[dict[str, Tensor]]) -> None:
        self.fused: Tensor = attend.fused
        self._attend = attend
        self._rows = rows

    def __call__(self, layer: int) -> Tensor:
        """Run the attention's own call."""
        count = self._attend.num_used_rows
        q, k, v = cut_heads(self.fused[:count], self._attend.heads)
        given = {"q": by_head(q.transpose(0, 1).flatten(1, 2)), "k": by_head(k.transpose(0, 1)), "v": v.cpu().clone()}
        out: Tensor = self._attend(layer)
        self._rows.append({**given, "attention": out[:count].cpu().clone()})
        return out


def by_head(paired: Tensor) -> Tensor:
    """Return (N, heads, head_dim) with the dimensions of a pair side by side as (heads, N, head_dim) in two halves."""
    halves = paired.reshape(*paired.shape[:-1], -1, 2).transpose(-1, -2)
    return halves.flatten(-2).transpose(0, 1).cpu().clone()


def _masks(attend: Any, item: VerifyItem) -> dict[int | None, NDArray[np.bool_]]:
    """Read from the attention which keys each row was allowed to see."""
    total = item.length + item.tree.num_nodes
    masks: dict[int | None, NDArray[np.bool_]] = {}
    first = 0
    for piece in attend._items:
        count = piece.num_rows
        for window, span in piece._spans.items():
            mask = masks.setdefault(window, np.zeros((item.tree.num_nodes, total), dtype=bool))
            num_keys = span.weights.shape[-1]
            end = item.length + first + count
            rows = mask[first : first + count]
            rows[:, end - num_keys : end] = True
            if span.hidden is not None:
                hidden = span.hidden.reshape(count, -1).cpu().numpy()
                rows[:, end - hidden.shape[1] : end] = ~hidden
        first += count
    return masks


@contextmanager
def watching(target: DecoderTarget, recorder: Recorder, num_layers: int) -> Iterator[None]:
    """Have the recorder see every forward inside the block. The engine must be idle at both ends."""
    verify, commit, decoder = target.verify, target.commit, target._decoder

    def watched_verify(items: Sequence[VerifyItem]) -> Any:
        cached = recorder.before(items)
        results = verify(items)
        if cached is not None:
            recorder.after(items[0], cached, results[0].logits)
        return results

    def watched_commit(region: SlotRegion, length: int, path: Sequence[int]) -> None:
        commit(region, length, path)
        recorder.committed(region, length, path)

    changes: dict[str, Any] = {
        "verify": watched_verify,
        "commit": watched_commit,
        "_decoder": recorder.decoder(decoder, num_layers),
    }
    try:
        for name, value in changes.items():
            setattr(target, name, value)
        yield
    finally:
        target._decoder = decoder
        # The methods are the class's own again.
        for name in ("verify", "commit"):
            vars(target).pop(name, None)
