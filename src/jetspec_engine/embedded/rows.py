"""How many rows a linear layer may be given at a time so that a row's bits never depend on the other rows.

A library picks its kernel by the number of rows, and another kernel may add in another order. Which numbers agree is
a property of the library, the processor, the dtype and the shape: it is measured when the model is loaded, not
assumed. Ordinary random numbers would not do: rounding to bfloat16 hides all but one in ten thousand of the
differences, which then surface in the middle of a text. So the operands are made such that large terms cancel and
what is left is mostly the order of summation. Knows nothing of models or of what the rows mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jetspec_engine.draft.row_counts import ROW_COUNTS, next_row_count, pad_rows

# The anchor: the rows of a linear verify, in whose kernel most rounds run.
ANCHOR_ROWS = 16
MAX_ROWS = ROW_COUNTS[-1]
FIXED_COUNTS = (MAX_ROWS, 64, 32)
# Size of the terms that cancel, beside terms of about 1.
CANCELLING = 2.0**14
# Random weights are slow to make; the outputs beyond these repeat them.
DISTINCT_OUTPUTS = 256


@dataclass(frozen=True, kw_only=True)
class RowPolicy:
    """Row counts among which a row's result keeps its bits. Rows are padded with zeros to one that has been tried.

    Attributes:
        min_rows: the fewest.
        max_rows: the most; more rows are split into tiles of this many.
    """

    min_rows: int
    max_rows: int

    def apply(self, run: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """Return ``run(*rows)`` computed in allowed row counts.

        Args:
            run: a function of row-wise tensors (n, ...) to (n, ...).
            rows: its arguments, all with the same n >= 1.
        """
        count = rows[0].shape[0]
        if count > self.max_rows:
            tiles = zip(*(torch.split(x, self.max_rows) for x in rows), strict=True)
            return torch.cat([self.apply(run, *tile) for tile in tiles])
        allowed = min(max(next_row_count(count), self.min_rows), self.max_rows)
        return run(*rows) if count == allowed else run(*(pad_rows(x, allowed) for x in rows))[:count]


def shared_row_count(count: int, policies: Sequence[RowPolicy]) -> int:
    """Return how many rows to pad ``count`` rows to, so that no layer of these policies needs to pad them again.

    The count itself where no padding spares all of them theirs: one layer's least is above another's most, or the
    rows are run in tiles.
    """
    wanted = max([next_row_count(count), *(policy.min_rows for policy in policies)])
    return wanted if all(wanted <= policy.max_rows for policy in policies) else count


@dataclass(frozen=True, kw_only=True)
class Operands:
    """What a layer is tried with: rows (ANCHOR_ROWS, K), and weights (N, K) whose columns match them."""

    rows: Tensor
    weights: tuple[Tensor, ...]

    @classmethod
    def cancelling(
        cls, outputs: int, inputs: int, num_weights: int, dtype: torch.dtype, device: torch.device
    ) -> "Operands":
        """Make operands whose products are small sums of large terms of either sign, in shuffled places."""
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(ANCHOR_ROWS, inputs, generator=generator)
        order = torch.randperm(inputs, generator=generator)
        plus, minus = order[: inputs // 3], order[inputs // 3 : 2 * (inputs // 3)]
        rows[:, plus] *= CANCELLING
        rows[:, minus] = -rows[:, plus]
        weights = []
        for _ in range(num_weights):
            weight = torch.randn(min(outputs, DISTINCT_OUTPUTS), inputs, generator=generator)
            weight[:, minus] = weight[:, plus]
            repeats = -(-outputs // len(weight))
            weights.append(weight.to(device, dtype).repeat(repeats, 1)[:outputs])
        return cls(rows=rows.to(device, dtype), weights=tuple(weights))


def probe_rows(run: Callable[..., Tensor], rows: Sequence[Tensor]) -> RowPolicy:
    """Find the row policy of a layer.

    On the CPU the range around the anchor is grown and shrunk while rows keep their bits at every place tried. On a
    GPU, where kernels change with every shape, the count is fixed: one shape has one kernel, and all that is left to
    check is that a row's place does not matter in it.

    Args:
        run: the layer on weights of ``Operands``.
        rows: its operands, (ANCHOR_ROWS, ...) each.

    Returns:
        The policy; one row at a time when not even equal counts agree.
    """
    if rows[0].device.type != "cpu":
        return next((RowPolicy(min_rows=n, max_rows=n) for n in FIXED_COUNTS if _is_place_free(run, rows, n)), ONE_ROW)
    if not _is_place_free(run, rows, ANCHOR_ROWS):
        return ONE_ROW
    anchor = run(*rows)
    smallest = largest = ANCHOR_ROWS
    for count in (n for n in reversed(ROW_COUNTS) if n < ANCHOR_ROWS):
        ends = ([x[:count] for x in rows], anchor[:count]), ([x[-count:] for x in rows], anchor[-count:])
        if not all(torch.equal(run(*part), wanted) for part, wanted in ends):
            break
        smallest = count
    for count in (n for n in ROW_COUNTS if n > ANCHOR_ROWS):
        if not torch.equal(run(*(_repeated(x, count) for x in rows)), _repeated(anchor, count)):
            break
        largest = count
    return RowPolicy(min_rows=smallest, max_rows=largest)


def _is_place_free(run: Callable[..., Tensor], rows: Sequence[Tensor], count: int) -> bool:
    """Whether the same row gives the same bits at every place among ``count``, beside other rows."""
    straight = run(*(_repeated(x, count) for x in rows))
    rolled = run(*(_repeated(x, count).roll(5, 0) for x in rows))
    is_periodic = torch.equal(straight, _repeated(straight[:ANCHOR_ROWS], count))
    return is_periodic and torch.equal(straight.roll(5, 0), rolled)


def _repeated(rows: Tensor, count: int) -> Tensor:
    return rows.repeat(-(-count // ANCHOR_ROWS), 1)[:count].contiguous()


ONE_ROW = RowPolicy(min_rows=1, max_rows=1)
