"""The small pieces of arithmetic."""

import pytest
import torch
from torch.nn import functional

from jetspec_engine.draft.linear import prepare_linear
from jetspec_engine.draft.rope import rope_tables, rotate


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 70])
def test_a_prepared_linear_is_the_linear(dtype: torch.dtype, tolerance: float, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    x = torch.randn(rows, 64, generator=generator).to(dtype)
    with torch.inference_mode():
        made = prepare_linear(weight)(x)
    assert made.dtype == dtype
    torch.testing.assert_close(made, functional.linear(x, weight), rtol=tolerance, atol=10 * tolerance)


def test_rotation_turns_each_pair_by_its_angle() -> None:
    cos, sin = rope_tables(10, 8, 100.0, device=torch.device("cpu"), dtype=torch.float64)
    x = torch.randn(10, 3, 8, dtype=torch.float64)
    turned = rotate(x, cos, sin)
    for position in range(10):
        for pair in range(4):
            angle = torch.tensor(position * 100.0 ** (-2 * pair / 8), dtype=torch.float64)
            before = torch.complex(x[position, :, pair], x[position, :, pair + 4])
            after = torch.complex(turned[position, :, pair], turned[position, :, pair + 4])
            torch.testing.assert_close(
                after, before * torch.polar(torch.ones((), dtype=torch.float64), angle), rtol=1e-5, atol=1e-5
            )
