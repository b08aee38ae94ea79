"""Evidence of an examination as named tensors and as bytes, and what the reference itself chooses.

Knows records of forwards; nothing of checks.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from jetspec_engine.embedded.reference import reference_forward
from jetspec_engine.forensics.arithmetic import Source
from jetspec_engine.forensics.findings import expected_mask, expected_positions
from jetspec_engine.forensics.watch import Forward

TOP_K = 5
# Cache rows of a whole text can be large; beyond this they stay where they are.
MAX_CACHE_BYTES = 1 << 28


def evidence(
    forward: Forward | None, stored: Sequence[tuple[Tensor, Tensor]], pair: tuple[Tensor, Tensor] | None
) -> dict[str, Tensor]:
    """Return the decisive round's tensors by name.

    Args:
        forward: the round's forward.
        stored: (keys, values) rows in the order they were committed.
        pair: of the first operation beyond its rounding: rows used and expected.
    """
    tensors: dict[str, Tensor] = {}
    if forward is None:
        return tensors
    tree = forward.tree
    tensors |= {"tree.tokens": torch.from_numpy(tree.tokens), "tree.parents": torch.from_numpy(tree.parents)}
    tensors["positions.used"] = torch.from_numpy(forward.positions)
    tensors["positions.expected"] = torch.from_numpy(expected_positions(forward))
    for window, mask in forward.sees.items():
        name = "mask" if window is None else f"mask.window{window}"
        tensors[f"{name}.used"] = torch.from_numpy(mask)
        tensors[f"{name}.expected"] = torch.from_numpy(expected_mask(forward, window))
    tensors["logits"] = forward.logits
    path = list(forward.path or ())
    for layer, rows in enumerate(forward.layers):
        for name in ("q", "k", "v"):
            tensors[f"layers.{layer}.{name}"] = getattr(rows, name)[:, path]
        tensors[f"layers.{layer}.attention"] = rows.attention[path]
        tensors[f"layers.{layer}.state"] = rows.state[path]
    if stored and sum(x.nbytes for rows in stored for x in rows) <= MAX_CACHE_BYTES:
        tensors["cache.keys"], tensors["cache.values"] = (
            torch.cat([rows[side] for rows in stored], 2) for side in (0, 1)
        )
    if pair is not None:
        tensors["finding.used"], tensors["finding.expected"] = pair[0], pair[1].float()
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def reference_view(source: Source, question: Any, emitted: Sequence[int]) -> tuple[dict[str, Any], Tensor]:
    """Return what the float64 reference chooses at the token in doubt, given the text before it, and its logits (V,).

    Args:
        source: configuration and weights.
        question: an ``examine.Question``.
        emitted: the text.
    """
    ids = torch.tensor([*question.input_ids, *emitted[: question.position]])
    places = torch.arange(len(ids))
    sees = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    weights = {name: tensor.cpu() for name, tensor in source.weights.items()}
    logits, _ = reference_forward(source.config, weights, ids, places, sees)
    row = logits[-1]
    top = row.topk(min(TOP_K, len(row)))
    pairs = [[int(token), float(logit)] for logit, token in zip(top.values, top.indices, strict=True)]
    return {"top": pairs, "gap": pairs[0][1] - pairs[1][1] if len(pairs) > 1 else None}, row.float()


def to_bytes(report: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return a safetensors file whose metadata holds the report as JSON under ``report``."""
    made: bytes = save(dict(tensors), metadata={"report": json.dumps(report)})
    return made
