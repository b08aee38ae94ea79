"""Triton where it is installed, else a stand-in; and whether a tensor may go through its kernels."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = None
    # Kernel signatures name tl.constexpr where they are defined, so the name has to exist.
    tl = SimpleNamespace(constexpr=None)

__all__ = ["has_triton_for", "jit", "tl", "triton"]


def has_triton_for(*tensors: Tensor) -> bool:
    """Whether Triton is there and every tensor lives on a CUDA device."""
    return triton is not None and all(t.is_cuda for t in tensors)


def jit(function: Any) -> Any:
    """Compile a kernel where Triton is installed; else return the function, never to be called."""
    return function if triton is None else triton.jit(function)
