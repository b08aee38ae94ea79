"""Where the tensors of two sides first differ, bit by bit: committed cache rows first, then the row that chose.

Both sides decoded the same tokens up to the one in doubt, and an exact engine computes the same bits for the same
tokens whatever the tree. Knows nothing of which side is right.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from jetspec_cli.gating.ulp import ulp
from jetspec_cli.serving.tensor_file import NAMES, Tensor, TensorFile

CACHE_TENSORS = ("keys", "values")
ROW_TENSORS = ("q", "k", "v", "attention", "state")


def first_differing(
    oracle: tuple[Mapping[str, Any], TensorFile], candidate: tuple[Mapping[str, Any], TensorFile]
) -> dict[str, Any] | None:
    """Return the first tensor whose bits differ: tensor, layer, row, ulps; None when none does.

    Args:
        oracle, candidate: report and evidence of an examination of each side, at the same emitted token.
    """
    for found in (*_cache_rows(oracle[1], candidate[1], oracle[0]["num_common"]), *_deciding_rows(oracle, candidate)):
        return found
    return None


def _cache_rows(oracle: TensorFile, candidate: TensorFile, num_common: int) -> Iterator[dict[str, Any]]:
    pairs = [
        (name, oracle.tensors.get(f"cache.{name}"), candidate.tensors.get(f"cache.{name}")) for name in CACHE_TENSORS
    ]
    given = [(name, left, right) for name, left, right in pairs if left is not None and right is not None]
    if not given:
        return
    layers, heads, *_ = given[0][1].shape
    # Beyond the common tokens the sides may differ, being of other texts.
    for row in range(min(num_common, *(side.shape[2] for _, *sides in given for side in sides))):
        for layer in range(layers):
            for name, left, right in given:
                for head in range(heads):
                    mine, other = left.part(layer, head, row), right.part(layer, head, row)
                    if mine != other:
                        yield _finding((f"cache.{name}", layer, row), left, mine, other)
                        return


def _deciding_rows(
    oracle: tuple[Mapping[str, Any], TensorFile], candidate: tuple[Mapping[str, Any], TensorFile]
) -> Iterator[dict[str, Any]]:
    rounds: list[dict[str, Any]] = [side[0].get("round") or {} for side in (oracle, candidate)]
    if not all(rounds) or any(found["chosen_at"] not in found["path"] for found in rounds):
        return
    place, other_place = (found["path"].index(found["chosen_at"]) for found in rounds)
    left, right = oracle[1].tensors, candidate[1].tensors
    layer = 0
    while f"layers.{layer}.state" in left and f"layers.{layer}.state" in right:
        for name in ROW_TENSORS:
            a, b = left[f"layers.{layer}.{name}"], right[f"layers.{layer}.{name}"]
            # q, k and v have their heads in front.
            for head in range(a.shape[0]) if len(a.shape) == 3 else (None,):
                index = () if head is None else (head,)
                mine, other = a.part(*index, place), b.part(*index, other_place)
                if mine != other:
                    yield _finding((name, layer, rounds[1]["chosen_at"]), a, mine, other)
                    return
        layer += 1
    a, b = left["logits"], right["logits"]
    # The last row of a prompt's chunk is the only one with logits.
    rows = [min(found["chosen_at"], t.shape[0] - 1) for found, t in zip(rounds, (a, b), strict=True)]
    if a.part(rows[0]) != b.part(rows[1]):
        yield _finding(("logits", None, rounds[1]["chosen_at"]), a, a.part(rows[0]), b.part(rows[1]))


def _finding(place: tuple[str, int | None, int], tensor: Tensor, mine: memoryview, other: memoryview) -> dict[str, Any]:
    name, layer, row = place
    dtype = NAMES.get(tensor.dtype, tensor.dtype)
    return {"tensor": name, "layer": layer, "row": row, "ulps": _ulps(tensor, mine, other), "dtype": dtype}


def _ulps(tensor: Tensor, mine: memoryview, other: memoryview) -> float | None:
    """Return the largest distance in ULP at the root mean square of the oracle's row; None where that has no sense."""
    left, right = tensor.numbers(mine), tensor.numbers(other)
    dtype = NAMES.get(tensor.dtype)
    if dtype is None or not all(math.isfinite(x) for x in (*left, *right)):
        return None
    size = math.sqrt(sum(x * x for x in left) / len(left))
    return max(abs(a - b) for a, b in zip(left, right, strict=True)) / ulp(dtype, size)
