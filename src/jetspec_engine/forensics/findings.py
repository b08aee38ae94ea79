"""What is wrong in a forward, by rules that need no tolerance: positions, masks, cache rows, the walk, the end.

Each rule is worked out anew from the tree and the tokens with the slow references. Knows nothing of arithmetic.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jetspec_engine.forensics.watch import Forward
from jetspec_engine.tree.accept import NON_FINITE
from jetspec_engine.tree.reference import accept_reference, ancestor_mask_reference

# In the order in which a round computes them: the first that differs is the fault, the later ones follow from it.
TENSORS = (
    "cache.keys", "cache.values", "tree.tokens", "positions", "mask",
    "q", "k", "v", "attention", "state", "logits", "choice", "commit.keys", "commit.values", "end",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A tensor that is not what it should be.

    Attributes:
        forward: index of the forward, prompt chunks included.
        round: the same counted in rounds, the prompt's last chunk as round 0; negative within the prompt.
        tensor: one of TENSORS.
        layer: None where there is none.
        row: node of the round's tree, or cache position for the cache and commit tensors.
        column: within the row, where that says more: the key of a mask.
        used, expected: the numbers there.
        ulps: how far apart, in ULP of the tensor's dtype at the row's magnitude; None for integers.
        detail: one line.
    """

    forward: int
    round: int
    tensor: str
    layer: int | None = None
    row: int
    column: int | None = None
    used: Any = None
    expected: Any = None
    ulps: float | None = None
    detail: str

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: the earliest forward, within it the layers from the first on, within a layer by flow of data."""
        place = TENSORS.index(self.tensor)
        is_before = place < TENSORS.index("q")
        is_after = place > TENSORS.index("state")
        layer = -1 if is_before else 1 << 30 if is_after else self.layer or 0
        return self.forward, layer, place


def expected_positions(forward: Forward) -> NDArray[np.int64]:
    """Return every node's position: context length + edges to the root, counted by walking."""
    parents = forward.tree.parents.tolist()
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return forward.length + np.array(depths, dtype=np.int64)


def expected_mask(forward: Forward, window: int | None) -> NDArray[np.bool_]:
    """Return (N, length + N): every node sees the prefix and its ancestors, within the window by position."""
    places = expected_positions(forward)
    keys = np.concatenate((np.arange(forward.length), places))
    own = ancestor_mask_reference(forward.tree.parents.tolist())
    sees = np.concatenate((np.ones((len(places), forward.length), dtype=bool), own), axis=1)
    return sees if window is None else sees & (keys[None, :] > places[:, None] - window)


def check_layout(forward: Forward, number: int, windows: Sequence[int | None]) -> list[Finding]:
    """Return what is wrong with a forward's positions and masks, the first of each.

    Args:
        forward: complete.
        number: its round.
        windows: of the layers, to name the first layer that a wrong mask belongs to.
    """
    found = []
    wanted = expected_positions(forward)
    wrong = np.flatnonzero(forward.positions != wanted)
    if len(wrong):
        row = int(wrong[0])
        used, right = int(forward.positions[row]), int(wanted[row])
        detail = f"node {row} at depth {right - forward.length} is rotated for position {used}, expected {right}"
        found.append(
            Finding(
                forward=forward.index, round=number, tensor="positions", row=row,
                used=used, expected=right, detail=detail,
            )
        )  # fmt: skip
    masks: list[tuple[int, int, int, NDArray[np.bool_]]] = []
    for window, used_mask in forward.sees.items():
        right_mask = expected_mask(forward, window)
        places = np.argwhere(used_mask != right_mask)
        if len(places):
            row, column = (int(x) for x in places[0])
            masks.append((list(windows).index(window), row, column, used_mask))
    for layer, row, column, used_mask in sorted(masks, key=lambda one: one[:3])[:1]:
        key = f"position {column}" if column < forward.length else f"node {column - forward.length}"
        verb = "sees" if used_mask[row, column] else "does not see"
        found.append(
            Finding(
                forward=forward.index, round=number, tensor="mask", layer=layer, row=row, column=column,
                used=bool(used_mask[row, column]), expected=not used_mask[row, column],
                detail=f"node {row} (parent {int(forward.tree.parents[row])}) {verb} {key}",
            )
        )  # fmt: skip
    return found


def check_rows(
    what: str, forward: Forward, number: int, used: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]
) -> list[Finding]:
    """Compare stored rows bit by bit and return the first that differs.

    Args:
        what: cache (all committed rows, before a forward) or commit (the path's rows, after one).
        forward, number: the forward and its round.
        used, expected: (keys, values), (L, KV heads, T, head_dim) each.
    """
    first = 0 if what == "cache" else forward.length
    worst: tuple[int, int, int] | None = None
    for place, (mine, right) in enumerate(zip(used, expected, strict=True)):
        if torch.equal(mine, right):
            continue
        # NaN never equals itself, so bits are compared.
        differs = (mine.contiguous().view(torch.uint8) != right.contiguous().view(torch.uint8)).flatten(3)
        by_row = differs.any(-1).any(1)  # (L, T)
        row = int(by_row.any(0).nonzero()[0, 0])
        layer = int(by_row[:, row].nonzero()[0, 0])
        candidate = (row, layer, place)
        worst = candidate if worst is None else min(worst, candidate)
    if worst is None:
        return []
    row, layer, place = worst
    name = ("keys", "values")[place]
    mine, right = used[place][layer, :, row], expected[place][layer, :, row]
    cause = "differs from the row that was committed" if what == "cache" else "is not the row of the accepted node"
    return [
        Finding(
            forward=forward.index, round=number, tensor=f"{what}.{name}", layer=layer, row=first + row,
            used=_norm(mine), expected=_norm(right), ulps=ulps_between(mine, right),
            detail=f"{name} of layer {layer} at position {first + row}: {cause}",
        )
    ]  # fmt: skip


def check_choice(forward: Forward) -> tuple[list[int], tuple[int, ...]]:
    """Return what a right round emits, and the right path; empty where the forward has no logits."""
    if forward.logits_from >= forward.tree.num_nodes:
        return [], tuple(range(forward.tree.num_nodes))
    ids = [NON_FINITE] * forward.logits_from + first_argmax(forward.logits)
    if forward.logits_from:
        # A prompt's last chunk: its last row chooses the first token.
        return [ids[-1]], tuple(range(forward.tree.num_nodes))
    accepted = accept_reference(forward.tree, ids)
    emitted = [*(int(forward.tree.tokens[node]) for node in accepted.path[1:]), accepted.bonus]
    return emitted, accepted.path


def first_argmax(logits: Tensor) -> list[int]:
    """Return each row's first largest logit's id, NON_FINITE where a row names no token."""
    found = []
    for row in logits.float():
        top = row.max()
        found.append(int((row == top).nonzero()[0, 0]) if bool(torch.isfinite(top)) else NON_FINITE)
    return found


def ulps_between(used: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> float:
    """Return the largest distance of two rows, in ULP of a dtype at the expected row's root mean square."""
    kind = dtype or used.dtype
    if not kind.is_floating_point:
        return float((used.double() - expected.double()).abs().max())
    eps = torch.finfo(kind).eps
    size = float(expected.double().pow(2).mean().sqrt())
    exponent = math.floor(math.log2(size)) if size > 0 and math.isfinite(size) else -126
    distance = float((used.double() - expected.double()).abs().max())
    return float(distance / math.ldexp(eps, exponent))


def _norm(row: Tensor) -> float:
    return float(row.double().norm())


def as_plain(finding: Finding | None) -> Mapping[str, Any] | None:
    """Return a finding as plain data, or None."""
    return None if finding is None else finding.to_mapping()
