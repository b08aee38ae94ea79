"""Float32 means float32 in our own calls, and the process's switches are left as they were.

Knows nothing of models. TF32 on a GPU, and bfloat16 in the place of float32 on a CPU, are switches of the whole
process that a program around us may have turned.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

STRICT = "ieee"


@contextmanager
def strict_precision() -> Iterator[None]:
    """Compute float32 products in float32 inside the block; restores the caller's switches after it."""
    gpu, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    found = (gpu.fp32_precision, cpu.fp32_precision)
    if found == (STRICT, STRICT) or (found[1] in (STRICT, "none") and not torch.cuda.is_available()):
        yield
        return
    gpu.fp32_precision = cpu.fp32_precision = STRICT
    try:
        yield
    finally:
        gpu.fp32_precision, cpu.fp32_precision = found
