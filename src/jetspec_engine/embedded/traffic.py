"""What a round must read from memory at the least, and how fast memory can be read: the floor under a round's time.

Counts weights and cached keys and values once a forward; activations and what a processor cache might keep are left
out. Knows nothing of rounds and requests.
"""

import math
import time
from collections.abc import Mapping

import torch

from jetspec_engine.draft.head import DraftHead
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tensor_table import expected_tensors

BUFFER_BYTES = 256 << 20
NUM_READS = 7


def round_bytes(config: DecoderConfig, head: DraftHead | None, dtype: torch.dtype, slot_bytes: float) -> dict[str, int]:
    """Return the bytes that the two forwards of a round read.

    Args:
        config: of the target.
        head: the draft head, or None when a stand-in drafts.
        dtype: of the weights as they are multiplied.
        slot_bytes: keys and values of one position in all of the target's layers.

    Returns:
        target: all weights of a verify, the LM head included, an untied embedding not (a few rows of it are read).
        head: all weights of a draft and the LM head, which it shares. kv_per_token: of a verify, per context token.
    """
    sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in expected_tensors(config).items()}
    embedding = sizes.get("embed_tokens.weight", 0)
    lm_head = sizes.get("lm_head.weight", embedding)
    target = sum(sizes.values()) - (embedding if "lm_head.weight" in sizes else 0)
    own = 0 if head is None else sum(p.numel() for p in head.parameters()) * dtype.itemsize + lm_head
    return {"target": target, "head": own, "kv_per_token": round(slot_bytes)}


def read_bandwidth(device: torch.device) -> float:
    """Return the bytes a second that a plain sum reads from memory, the best of several; a few tenths of a second."""
    buffer = torch.ones(BUFFER_BYTES // 4, dtype=torch.float32, device=device)
    best = math.inf
    for _ in range(NUM_READS):
        _wait(device)
        begin = time.perf_counter()
        buffer.sum()
        _wait(device)
        best = min(best, time.perf_counter() - begin)
    return buffer.nbytes / best


def floor_s(sizes: Mapping[str, int], context: float, bandwidth: float) -> dict[str, float]:
    """Return the least seconds of a draft and of a verify with so many context tokens."""
    verify = sizes["target"] + sizes["kv_per_token"] * context
    return {"draft": sizes["head"] / bandwidth, "verify": verify / bandwidth}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
