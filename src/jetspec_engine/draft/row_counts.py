"""The numbers of rows that products on a CPU are run with: few, because each costs memory for good.

oneDNN compiles a kernel for every shape it meets and keeps it: up to 0.6 MB a shape (measured for bfloat16), for up to
1,024 shapes. A server that ran whatever count a round happens to have would grow by hundreds of megabytes. Knows
nothing of what the rows mean.
"""

from functools import lru_cache

from torch import Tensor
from torch.nn import functional

# Dense where rounds are: one token, trees of up to a chain, multiples of 16 for several requests and larger trees.
ROW_COUNTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@lru_cache(maxsize=1024)
def next_row_count(count: int) -> int:
    """Return the smallest allowed number of rows that is at least ``count``: one of ROW_COUNTS, or a multiple of it."""
    largest = ROW_COUNTS[-1]
    return next((n for n in ROW_COUNTS if n >= count), -(-count // largest) * largest)


def pad_rows(rows: Tensor, count: int) -> Tensor:
    """Return (n, K) rows with zeros below up to ``count`` rows."""
    missing = count - rows.shape[0]
    return functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
