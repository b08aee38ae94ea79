"""Finds where a small model's text has fallen into a loop, so that loops teach a little and not everything.

A position is *repeated* when the four tokens ending there stood earlier in the same row. A loop starts where almost
all of a window is repeated. Works on (R, T) token tensors on any device, all rows at once.
"""

import torch
from torch import Tensor

GRAM = 4
WINDOW = 32
LOOP_SHARE = 0.9
LOOK_BACK = 96
_MIX = 1_000_003


def repeated(tokens: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Return (R, T) bool: whether the gram ending at t stood earlier in [start, t), False outside the text.

    Args:
        tokens: (R, T) integers. starts, lengths: (R,) on the same device; only [start, length) counts.
    """
    T = tokens.shape[1]
    ids = tokens.long() + 1
    gram = ids.clone()
    for back in range(1, GRAM):
        gram = gram * _MIX
        gram[:, back:] += ids[:, :-back]
    t = torch.arange(T, device=tokens.device)
    is_gram = (t >= starts[:, None] + GRAM - 1) & (t < lengths[:, None])
    gram = torch.where(is_gram, gram, -1 - t)
    ordered, order = gram.sort(dim=1, stable=True)
    same = torch.zeros_like(is_gram)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(is_gram).scatter(1, order, same) & is_gram


def loop_onset(tokens: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Return (R,) int64: the position where the first loop starts, or the row's length where there is none."""
    T = tokens.shape[1]
    if T < WINDOW:
        return lengths.clone()
    again = repeated(tokens, starts, lengths).int()
    total = torch.nn.functional.pad(again.cumsum(1), (1, 0))
    in_window = total[:, WINDOW:] - total[:, :-WINDOW]
    is_loop = in_window >= LOOP_SHARE * WINDOW
    first = torch.where(is_loop.any(1), is_loop.int().argmax(1), T)
    return torch.minimum(first, lengths)


def is_looping(tokens: Tensor, starts: Tensor, positions: Tensor) -> Tensor:
    """Return (R,) bool: whether the text that ends at each row's position is in a loop by now.

    Looks at the last ``LOOK_BACK`` tokens only; rows with fewer answer tokens are not looping yet.
    """
    offsets = torch.arange(LOOK_BACK, device=tokens.device)
    at = (positions[:, None] + 1 - LOOK_BACK + offsets).clamp(min=0)
    recent = tokens.gather(1, at)
    full = torch.full_like(positions, LOOK_BACK)
    again = repeated(recent, torch.zeros_like(positions), full)[:, -WINDOW:].sum(1)
    return (again >= LOOP_SHARE * WINDOW) & (positions + 1 - starts >= LOOK_BACK)
