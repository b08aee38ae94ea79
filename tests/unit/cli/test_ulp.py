"""Rounding distances (R18, R51)."""

import math

import pytest

from jetspec_cli.gating.ulp import gap_in_ulp, is_near_tie, ulp


@pytest.mark.parametrize(
    ("dtype", "magnitude", "expected"),
    [
        ("bfloat16", 16.0, 0.125),
        ("bfloat16", 31.9, 0.125),
        ("bfloat16", 32.0, 0.25),
        ("bfloat16", -63.0, 0.25),
        ("torch.bfloat16", 1.0, 2**-7),
        ("float32", 16.0, 2**-19),
        ("float16", 16.0, 2**-6),
    ],
)
def test_R18_one_ulp(dtype, magnitude, expected):
    assert ulp(dtype, magnitude) == expected


def test_float32_agrees_with_the_next_representable_number():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for value in (1e-30, 0.0, 0.7, 1.0, 19.25, 300.0):
            here = torch.tensor(abs(value), dtype=dtype)
            there = torch.nextafter(here, torch.tensor(math.inf, dtype=dtype))
            if float(here) < torch.finfo(dtype).tiny:
                continue
            assert ulp(str(dtype), float(here)) == float(there) - float(here)


def test_R18_two_ulp_are_a_near_tie_and_more_is_not():
    assert is_near_tie(gap_in_ulp("bfloat16", (20.0, 19.75)))
    assert not is_near_tie(gap_in_ulp("bfloat16", (20.0, 19.7)))
    assert is_near_tie(gap_in_ulp("bfloat16", (20.0, 20.0)))


@pytest.mark.parametrize("logits", [(math.nan, 1.0), (math.inf, 1.0), (1.0, -math.inf)])
def test_R39_non_finite_logits_are_never_a_near_tie(logits):
    assert gap_in_ulp("bfloat16", logits) == math.inf


def test_an_unknown_format_is_never_a_near_tie():
    assert gap_in_ulp("float8", (1.0, 1.0)) == math.inf
