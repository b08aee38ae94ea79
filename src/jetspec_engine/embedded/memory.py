"""How many cache slots to set aside, and how many of them finished prefixes may hold.

Knows sizes only: nothing of what a slot holds or who uses it.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from jetspec_engine.embedded.attention_choice import stored_dtypes
from jetspec_engine.models.config import DecoderConfig

MIB = 1 << 20
# Slots take memory on a CPU only once they are touched, so these bound what a busy server grows to.
CPU_STATE_BYTES = 512 * MIB
CPU_CACHED_BYTES = 96 * MIB
GPU_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class CacheSize:
    """Pages of the pool.

    Attributes:
        num_pages: pages in all; one sequence of full length fits always.
        max_cached_pages: pages that finished prefixes may hold beside the running requests.
    """

    num_pages: int
    max_cached_pages: int


def size_of_cache(
    bytes_a_slot: int, device: torch.device, *, page_size: int, sequence_slots: int, max_running: int
) -> CacheSize:
    """Choose the pool's size.

    Args:
        bytes_a_slot: of ``slot_bytes``.
        device: where the state lives.
        page_size: slots a page.
        sequence_slots: slots of one sequence of full length, with the rows of a round.
        max_running: sequences at once; as many full ones are made room for as memory allows, at least one.
    """
    bytes_a_page = page_size * bytes_a_slot
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        affordable = cached = int(free * GPU_SHARE) // bytes_a_page
    else:
        affordable, cached = CPU_STATE_BYTES // bytes_a_page, CPU_CACHED_BYTES // bytes_a_page
    one = -(-sequence_slots // page_size)
    return CacheSize(num_pages=max(one, min(max_running * one, affordable)), max_cached_pages=cached)


def slot_bytes(config: DecoderConfig, device: torch.device, max_nodes: int) -> int:
    """Return the bytes of one slot's keys and values in the layers that attend, for trees of ``max_nodes``."""
    pair = sum(dtype.itemsize for dtype in stored_dtypes(config, device, max_nodes))
    return pair * len(config.attention_layers) * config.num_kv_heads * config.head_dim


def available_bytes(device: torch.device) -> int:
    """Return the memory that can still be had on a device: free on a GPU, what the system offers on a CPU."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        # Not Linux: all of the machine's memory, the only number there is.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
