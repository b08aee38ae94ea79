"""Row policies: found by trial, kept by padding and tiling."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine.embedded import layouts, linear
from jetspec_engine.embedded.layouts import BLOCKED, PACKED, PLAIN, Layout, choose_layout
from jetspec_engine.embedded.linear import LinearFactory
from jetspec_engine.embedded.rows import ANCHOR_ROWS, MAX_ROWS, Operands, RowPolicy, probe_rows, shared_row_count

CPU = torch.device("cpu")


def halved(x: Tensor, weight: Tensor) -> Tensor:
    """The product summed in two halves: another order of summation."""
    half = x.shape[1] // 2
    first, second = (
        functional.linear(part.float(), own.float())
        for part, own in zip(x.split(half, 1), weight.split(half, 1), strict=True)
    )
    return (first + second).to(x.dtype)


def in_order(x: Tensor, weight: Tensor) -> Tensor:
    """The product of each row alone: no row can depend on another."""
    return torch.stack([functional.linear(row.float(), weight.float()) for row in x]).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("is_other", "expected"),
    [
        (lambda n: False, (1, MAX_ROWS)),
        (lambda n: n == 1, (2, MAX_ROWS)),
        (lambda n: n < 4, (4, MAX_ROWS)),
        (lambda n: n > 32, (1, 32)),
        (lambda n: n in (4, 64), (8, 48)),
        (lambda n: n == MAX_ROWS, (1, 96)),
    ],
)
def test_a_kernel_for_some_row_counts_is_found_in_any_dtype(is_other, expected, dtype: torch.dtype) -> None:
    # In bfloat16 ordinary random numbers show such a kernel in one of some ten thousand results only.
    operands = Operands.cancelling(40, 96, 1, dtype, CPU)
    (weight,) = operands.weights

    def run(x: Tensor) -> Tensor:
        return halved(x, weight) if is_other(len(x)) else in_order(x, weight)

    policy = probe_rows(run, [operands.rows])
    assert (policy.min_rows, policy.max_rows) == expected


def test_a_kernel_whose_result_depends_on_the_place_leaves_one_row_at_a_time() -> None:
    operands = Operands.cancelling(40, 96, 1, torch.float32, CPU)
    (weight,) = operands.weights

    def run(x: Tensor) -> Tensor:
        return torch.cat((in_order(x[:10], weight), halved(x[10:], weight))) if len(x) > 10 else in_order(x, weight)

    policy = probe_rows(run, [operands.rows])
    assert (policy.min_rows, policy.max_rows) == (1, 1)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 16, 17, 33, 100])
def test_rows_are_padded_and_tiled_to_allowed_counts(count: int) -> None:
    seen = []

    def run(x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return x + 2 * y

    x, y = torch.randn(count, 5), torch.randn(count, 5)
    policy = RowPolicy(min_rows=4, max_rows=16)
    assert torch.equal(policy.apply(run, x, y), x + 2 * y)
    assert set(seen) <= {4, 8, 12, 16}


@pytest.mark.parametrize("layout", [PACKED, BLOCKED, PLAIN], ids=lambda layout: layout.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_compute_what_they_say(layout: Layout, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if layout is not PLAIN and choose_layout(dtype, CPU) is PLAIN:
        pytest.skip("this processor packs no weights of that dtype")
    monkeypatch.setattr(linear, "choose_layout", lambda *_: layout)
    monkeypatch.setattr(layouts, "MAX_BLOCK_INPUTS", 10)
    make = LinearFactory(dtype, CPU)
    torch.manual_seed(0)
    x, residual = torch.randn(7, 24).to(dtype), torch.randn(7, 40).to(dtype)
    weight, up, bias = (
        (torch.randn(40, 24) / 5).to(dtype),
        (torch.randn(40, 24) / 5).to(dtype),
        torch.randn(40).to(dtype),
    )
    X, R, W, U, B = (t.double() for t in (x, residual, weight, up, bias))
    gate = X @ W.T
    tolerance = 1e-5 if dtype == torch.float32 else 0.04
    for made, wanted in (
        (make.linear(weight)(x), X @ W.T),
        (make.linear(weight, bias)(x), X @ W.T + B),
        (make.residual(weight)(x, residual), R + X @ W.T),
        (make.residual(weight, bias)(x, residual), R + X @ W.T + B),
        (make.gated(weight, up)(x), gate * torch.sigmoid(gate) * (X @ U.T)),
    ):
        assert made.dtype == dtype
        torch.testing.assert_close(made.double(), wanted, atol=tolerance, rtol=tolerance)
    assert set(make.policies) >= {"linear 40x24", "linear 40x24 bias", "residual 40x24", "gated 40x24"}


def test_plain_decoding_does_not_pay_for_the_widest_tree() -> None:
    # Whatever this processor's kernels are, one row must not be padded to more than the anchor.
    make = LinearFactory(torch.float32, CPU)
    make.linear(torch.randn(64, 48))
    assert all(policy.min_rows <= ANCHOR_ROWS for policy in make.policies.values())


@pytest.mark.parametrize(
    ("count", "limits", "wanted"),
    [
        (1, [(1, 128), (2, 128)], 2),
        (13, [(1, 128), (2, 128)], 16),
        (16, [(1, 128)], 16),
        (3, [(1, 2), (1, 128)], 3),  # run in tiles of two: padding to four would be one tile too many
        (1, [(32, 32), (64, 64)], 1),  # no count suits both
        (200, [(1, 128)], 200),
        (5, [], 8),
    ],
)
def test_rows_are_padded_once_where_one_count_suits_all_layers(
    count: int, limits: list[tuple[int, int]], wanted: int
) -> None:
    policies = [RowPolicy(min_rows=low, max_rows=high) for low, high in limits]
    assert shared_row_count(count, policies) == wanted
