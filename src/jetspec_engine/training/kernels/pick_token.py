"""The next token of every row: the likeliest, or one drawn at the row's temperature among the likely ones.

One pass over the logits finds the likeliest, a second adds Gumbel noise to those within ``min_p`` of it: no sorting,
so thousands of rows cost a fraction of ``topk``. Ties go to the lower id.
"""

import math

import torch
from torch import Tensor

from jetspec_engine.training.kernels.triton_or_none import has_triton_for, jit, tl


@jit
def _pick_kernel(LOGITS, TEMPERATURE, SEED, OUT, log_min_p, V, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    row = tl.program_id(0)
    base = row.to(tl.int64) * V
    best = tl.full((), -float("inf"), tl.float32)
    choice = tl.full((), 0, tl.int32)
    for start in range(0, V, TILE):
        j = start + tl.arange(0, TILE)
        x = tl.load(LOGITS + base + j, mask=j < V, other=-float("inf")).to(tl.float32)
        top = tl.max(x, 0)
        choice = tl.where(top > best, start + tl.argmax(x, 0), choice)
        best = tl.maximum(best, top)
    temperature = tl.load(TEMPERATURE + row)
    if temperature > 0:
        seed = tl.load(SEED)
        floor = best + temperature * log_min_p
        drawn = tl.full((), -float("inf"), tl.float32)
        for start in range(0, V, TILE):
            j = start + tl.arange(0, TILE)
            x = tl.load(LOGITS + base + j, mask=j < V, other=-float("inf")).to(tl.float32)
            uniform = tl.maximum(tl.rand(seed, row * V + j), 1e-7)
            noisy = tl.where(x >= floor, x / temperature - tl.log(-tl.log(uniform)), -float("inf"))
            top = tl.max(noisy, 0)
            choice = tl.where(top > drawn, start + tl.argmax(noisy, 0), choice)
            drawn = tl.maximum(drawn, top)
    tl.store(OUT + row, choice.to(tl.int64))


def pick_token(logits: Tensor, temperature: Tensor, min_p: float, seed: Tensor) -> Tensor:
    """Return one token id a row, (rows,) int64.

    Args:
        logits: (rows, V).
        temperature: (rows,) float32; 0 means the likeliest token.
        min_p: in (0, 1]; a drawn token has at least this probability relative to the likeliest.
        seed: (1,) int64 on the same device, different at every step (a tensor, so that a captured graph reads it).
    """
    log_min_p = math.log(max(min_p, 1e-9))
    rows, vocab = logits.shape
    if has_triton_for(logits):
        out = torch.empty(rows, device=logits.device, dtype=torch.int64)
        _pick_kernel[(rows,)](logits, temperature, seed, out, log_min_p, vocab, TILE=4096, num_warps=8)
        return out
    logits = logits.float()
    best = logits.max(-1, keepdim=True).values
    heat = temperature.clamp(min=1e-6)[:, None]
    noise = -torch.log(torch.empty_like(logits).exponential_().clamp(min=1e-20))
    noisy = (logits / heat + noise).masked_fill(logits < best + heat * log_min_p, -math.inf)
    return torch.where(temperature > 0, noisy.argmax(-1), logits.argmax(-1))
