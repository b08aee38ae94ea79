"""Linear layers prepared once for many small forwards.

Knows nothing of heads. Drafts need no invariance, so whatever is fastest at a few rows may be used.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.draft.row_counts import next_row_count, pad_rows

Linear = Callable[[Tensor], Tensor]

TYPICAL_ROWS = 16


def prepare_linear(weight: Tensor) -> Linear:
    """Return ``x -> x @ weight.T`` for rows (n, K) and a weight (N, K), packed for oneDNN where it is to be had (CPUs).

    Measured on one core at 16 rows: packed is 1.4 times as fast in bfloat16, 2.5 times in float32. Packing copies the
    weight, so the caller should drop its own.
    """
    weight = weight.detach().contiguous()
    if not _can_pack(weight):
        return lambda x: functional.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
    pointwise = torch.ops.mkldnn._linear_pointwise.default

    def run(x: Tensor) -> Tensor:
        count = x.shape[0]
        made: Tensor = pointwise(pad_rows(x, next_row_count(count)), packed, None, "none", [], "")
        return made[:count]

    return run


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    operators = torch.ops.mkldnn
    if not hasattr(operators, "_reorder_linear_weight") or not hasattr(operators, "_linear_pointwise"):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
