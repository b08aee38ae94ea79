"""Float32 on a GPU: SGLang's fused norm, activation and rotation take half precision only, and its own plain torch
forwards of the same layers take any dtype.

Hooked around three ``forward_cuda`` methods, for every server the plugin is loaded in: without it SGLang fails on
float32.
Half precision goes where it went. Imports no torch: a dtype says its own size.
"""

from collections.abc import Callable
from typing import Any

FLOAT32_BYTES = 4


def normalise_or_activate(original: Callable[..., Any], layer: Any, x: Any, *others: Any, **named: Any) -> Any:
    """Run ``RMSNorm`` or ``SiluAndMul`` on (any, features)."""
    forward = layer.forward_native if x.dtype.itemsize == FLOAT32_BYTES else original.__get__(layer)
    return forward(x, *others, **named)


def rotate(  # noqa: PLR0917 SGLang's signature
    original: Callable[..., Any], layer: Any, positions: Any, query: Any, key: Any, offsets: Any = None,
    fused_set_kv_buffer_arg: Any = None,
) -> Any:  # fmt: skip
    """Run ``RotaryEmbedding``; a float32 rotation that also writes the KV cache is not asked for by SGLang."""
    if query.dtype.itemsize == FLOAT32_BYTES and fused_set_kv_buffer_arg is None:
        return layer.forward_native(positions, query, key, offsets)
    return original(layer, positions, query, key, offsets, fused_set_kv_buffer_arg)
