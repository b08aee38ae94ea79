"""Room for recurrent states when a server starts: how many sequences keep one, and whether its largest tree fits.

Knows sizes, pools and devices, and no tensor. Targets without recurrent layers pass through untouched.
"""

import math
from collections.abc import Callable

import torch

from jetspec_engine.config import ServeConfig
from jetspec_engine.embedded.delta_memory import check_budget, sequence_bytes, states_note
from jetspec_engine.embedded.memory import CPU_CACHED_BYTES, GPU_SHARE, available_bytes
from jetspec_engine.embedded.pages import PagePool
from jetspec_engine.embedded.prefix_cache import RegionPool
from jetspec_engine.embedded.sequence_pool import SequencePool
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tensor_table import expected_tensors

# Finished sequences whose states may be kept for a continuation, as far as memory allows; one always may.
MAX_CACHED_SEQUENCES = 16
REUSE_NOTE = (
    "prefix cache: recurrent states cannot be cut, so a prompt reuses only a whole earlier text that it continues"
)


def check_room(
    config: ServeConfig,
    target: DecoderConfig,
    device: torch.device,
    dtype: torch.dtype,
    state_bytes_for: Callable[[int], int],
) -> None:
    """Refuse to start when the largest tree's states cannot fit beside weights, caches and committed states.

    Args:
        config: what to serve; ``max_budget`` is what the server may be switched to.
        target: of the target.
        device: where everything lives.
        dtype: of the model.
        state_bytes_for: bytes of keys and values that a server for a budget sets aside.

    Raises:
        ConfigError: it cannot fit; the message names the largest budget that can.
    """
    if target.delta is None:
        return
    weights = sum(math.prod(shape) for shape in expected_tensors(target).values()) * dtype.itemsize
    regions = num_regions(config.max_running, target, device, dtype)
    committed = regions * sequence_bytes(target.delta, dtype.itemsize)
    room = available_bytes(device) - weights - committed
    check_budget(
        target.delta,
        dtype.itemsize,
        budget=config.max_budget,
        num_sequences=config.max_running,
        room_for=lambda budget: room - state_bytes_for(budget),
    )


def num_regions(max_running: int, target: DecoderConfig, device: torch.device, dtype: torch.dtype) -> int:
    """Return how many sequences may hold a state: those that run, one that is scored, and finished ones."""
    assert target.delta is not None
    share = CPU_CACHED_BYTES if device.type == "cpu" else int(available_bytes(device) * GPU_SHARE) // 4
    cached = share // sequence_bytes(target.delta, dtype.itemsize)
    return max_running + 1 + min(max(cached, 1), MAX_CACHED_SEQUENCES)


def pool_for(config: ServeConfig, model: DecoderConfig, target: DecoderTarget, pages: PagePool) -> RegionPool:
    """Return the pool that the engine lends from: the pages, or with recurrent layers no more regions than states."""
    if model.delta is None:
        return pages
    return SequencePool(pages, num_regions(config.max_running, model, target.device, target.dtype), target.forget)


def state_notes(target: DecoderConfig, dtype: torch.dtype, max_budget: int) -> tuple[str, ...]:
    """Return what to say of recurrent states when a server starts; nothing for targets without."""
    if target.delta is None:
        return ()
    return REUSE_NOTE, states_note(target.delta, dtype.itemsize, max_budget)
