"""One forward's arithmetic, operation by operation: each result held against a slow float64 twin of its own inputs.

Because every operation is given what the engine itself computed before it, errors do not add up over the layers, and
the first operation beyond its rounding is the faulty one. Positions and masks are those that are right, not those that
were used. Knows nothing of caches: the keys and values of committed positions are given as they were computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from jetspec_engine.embedded.reference import (
    finish,
    head_logits,
    layer_weights,
    mix,
    project,
    rotary_angles,
    rotate,
)
from jetspec_engine.forensics.findings import Finding, expected_mask, expected_positions, ulps_between
from jetspec_engine.forensics.watch import Forward
from jetspec_engine.models.config import DecoderConfig

ARITHMETIC = ("q", "k", "v", "attention", "state", "logits")
# Beyond these an operation is wrong. On the demo target the healthy ones stay below 330 in float32 and 9 in bfloat16,
# the states below 212 and 130: a layer ends in several roundings of numbers far above their mean.
LIMIT_ULPS = {torch.float32: 2048.0, torch.bfloat16: 64.0, torch.float16: 64.0}
STATE_FACTOR = 16.0


@dataclass
class Committed:
    """Keys and values of committed positions as they were computed, not rotated: lists of (KV heads, T, head_dim)."""

    keys: list[list[Tensor]] = field(default_factory=list)
    values: list[list[Tensor]] = field(default_factory=list)

    def append(self, forward: Forward) -> None:
        """Take over the rows of the forward's path."""
        if not self.keys:
            self.keys = [[] for _ in forward.layers]
            self.values = [[] for _ in forward.layers]
        path = list(forward.path or ())
        for layer, rows in enumerate(forward.layers):
            self.keys[layer].append(rows.k[:, path])
            self.values[layer].append(rows.v[:, path])

    def of(self, layer: int, forward: Forward) -> tuple[Tensor, Tensor]:
        """Return float64 keys and values of the prefix and of a forward's own nodes."""
        rows = forward.layers[layer]
        keys = self.keys[layer] if self.keys else []
        values = self.values[layer] if self.values else []
        return torch.cat([*keys, rows.k], 1).double(), torch.cat([*values, rows.v], 1).double()


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the twin's weights come from.

    Attributes:
        config: of the target.
        weights: as ``load_weights`` returns them, in the dtype that the engine runs.
    """

    config: DecoderConfig
    weights: Mapping[str, Tensor]


def check_arithmetic(
    source: Source, forward: Forward, number: int, committed: Committed, rows: Sequence[int]
) -> Iterator[tuple[Finding, Tensor, Tensor]]:
    """Yield operations beyond their rounding, in the order of computation, as (finding, used, expected rows).

    Args:
        source: configuration and weights.
        forward: complete.
        number: its round.
        committed: the prefix's keys and values.
        rows: nodes to check.
    """
    config, chosen = source.config, list(rows)
    places = torch.from_numpy(expected_positions(forward))
    key_angles = rotary_angles(config, torch.cat((torch.arange(forward.length), places)))
    tokens = torch.from_numpy(forward.tree.tokens)[chosen]
    x = source.weights["embed_tokens.weight"].cpu()[tokens].double()
    masks = {window: torch.from_numpy(expected_mask(forward, window))[chosen] for window in set(config.sliding_windows)}
    beyond = Beyond(forward, number, chosen)
    for layer, mine in enumerate(forward.layers):
        own = {name: tensor.cpu() for name, tensor in layer_weights(source.weights, layer).items()}
        q, k, v = project(config, own, x)
        for name, used, right in (("q", mine.q, q), ("k", mine.k, k), ("v", mine.v, v)):
            yield from beyond((name, layer), _rows(used[:, chosen]), _rows(right))
        keys, values = committed.of(layer, forward)
        angles = key_angles[forward.length :][chosen]
        mask = masks[config.sliding_windows[layer]]
        mixed = mix(rotate(mine.q[:, chosen].double(), angles), rotate(keys, key_angles), values, mask)
        yield from beyond(("attention", layer), mine.attention[chosen], mixed)
        ended = finish(config, own, x, mine.attention[chosen].double())
        yield from beyond(("state", layer), mine.state[chosen], ended)
        x = mine.state[chosen].double()
    given = [place for place, node in enumerate(chosen) if node >= forward.logits_from]
    if given:
        last = Beyond(forward, number, [chosen[place] for place in given])
        used = forward.logits[[chosen[place] - forward.logits_from for place in given]]
        right = head_logits(config, {name: tensor.cpu() for name, tensor in _ends(source.weights).items()}, x[given])
        yield from last(("logits", None), used, right)


def _ends(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weights[name] for name in ("embed_tokens.weight", "lm_head.weight", "norm.weight") if name in weights}


def _rows(by_head: Tensor) -> Tensor:
    """Return (heads, N, d) as (N, heads * d)."""
    return by_head.transpose(0, 1).flatten(1)


@dataclass(frozen=True)
class Beyond:
    """Yields the first row that is beyond the rounding of the model's dtype, if there is one.

    Args:
        forward, number: the forward and its round.
        nodes: of the rows.
    """

    forward: Forward
    number: int
    nodes: Sequence[int]

    def __call__(
        self, place: tuple[str, int | None], used: Tensor, expected: Tensor
    ) -> Iterator[tuple[Finding, Tensor, Tensor]]:
        """Compare rows (n, X) of a tensor, ``place`` being its name and layer."""
        (name, layer), kind = place, self.forward.logits.dtype
        distances = [ulps_between(mine, right, kind) for mine, right in zip(used, expected, strict=True)]
        limit = LIMIT_ULPS[kind] * (STATE_FACTOR if name == "state" else 1.0)
        # NaN is beyond every limit.
        row = next((index for index, distance in enumerate(distances) if not distance <= limit), None)
        if row is None:
            return
        worst = int((used[row].double() - expected[row]).abs().nan_to_num(torch.inf).argmax())
        where = "" if layer is None else f" of layer {layer}"
        node, distance = int(self.nodes[row]), distances[row]
        finding = Finding(
            forward=self.forward.index,
            round=self.number,
            tensor=name,
            layer=layer,
            row=node,
            column=worst,
            used=float(used[row][worst]),
            expected=float(expected[row][worst]),
            ulps=distance,
            detail=f"{name}{where}, node {node}: {distance:.3g} ULP from the reference",
        )
        yield finding, used, expected
