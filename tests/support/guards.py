"""Buffers with canaries around them: whoever writes past an end is found out.

guards = Guards()
into = guards.around(TreeBuffers.allocate(...))    # a tensor, or a dataclass of tensors
...
guards.assert_whole()
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

CANARY = 0xA5
# Bytes on either side: more than a row of anything here, and a whole number of every alignment.
MARGIN = 1 << 16


class Guards:
    """Moves tensors into the middle of larger ones and remembers where they end."""

    def __init__(self) -> None:
        self._fences: list[Tensor] = []

    def around(self, value: Any) -> Any:
        """Return a copy of a tensor, or of every tensor of a dataclass, with canaries before and after it."""
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{field.name: self.around(getattr(value, field.name)) for field in fields(value)})
        if not isinstance(value, Tensor):
            return value
        whole = torch.full((value.nbytes + 2 * MARGIN,), CANARY, dtype=torch.uint8, device=value.device)
        self._fences += [whole[:MARGIN], whole[MARGIN + value.nbytes :]]
        inner = whole[MARGIN : MARGIN + value.nbytes].view(value.dtype).view(value.shape)
        return inner.copy_(value)

    def assert_whole(self) -> None:
        """Fail if any canary has changed."""
        assert self._fences
        assert all(bool((fence == CANARY).all()) for fence in self._fences)
