"""Tensors and plain data in one safetensors file: what training keeps between runs. Never a pickle, in or out.

Knows no training: names and values.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

PLAIN = "plain"


def write_state(path: Path, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Write tensors of any device, and plain data, whole or not at all. Raises OSError."""
    partial = path.with_suffix(".partial")
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # The format allows no two names for one memory, so every tensor is its own copy where it has to be.
    save_file({name: tensor.clone() for name, tensor in on_host.items()}, partial, {PLAIN: json.dumps(plain)})
    partial.replace(path)


def read_state(path: Path, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors on a device and plain data, as ``write_state`` was given them.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file; the message says why.
    """
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            plain = json.loads((file.metadata() or {})[PLAIN])
    except (SafetensorError, KeyError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"not a file of training state: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError("not a file of training state: its plain data is no object")
    return tensors, plain
