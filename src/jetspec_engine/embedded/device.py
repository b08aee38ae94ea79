"""Which device and dtype to compute in, from what the caller named and what the machine has.

Reads no environment: ``CUDA_VISIBLE_DEVICES`` has done its work before torch counts devices.
"""

import torch

from jetspec_engine.config import check_device
from jetspec_engine.errors import UnavailableError


def pick_device(name: str) -> torch.device:
    """Return the device; "auto" is a GPU where there is one. Raises UnavailableError, ConfigError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UnavailableError(f"device {name}: {count} CUDA devices here", hint="use --device cpu")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype; "auto" is bfloat16 where the processor computes in it (AMX, AVX512-BF16, CUDA)."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    is_fast = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if is_fast else torch.float32
