"""Rounding distances of floating-point numbers: how far two logits are apart in units of their last place.

Source: IEEE 754 binary32/binary16 and bfloat16 (8 significant bits).
"""

import math
from collections.abc import Sequence

NEAR_TIE_ULP = 2.0
# Significant bits of each format, the hidden one included, and the exponent of its smallest normal number.
SIGNIFICANT_BITS = {"float32": 24, "bfloat16": 8, "float16": 11}
MIN_EXPONENT = {"float32": -126, "bfloat16": -126, "float16": -14}


def ulp(dtype: str, magnitude: float) -> float:
    """Return the distance between neighbouring numbers of a format at a magnitude.

    Args:
        dtype: float32, bfloat16 or float16, with or without a ``torch.`` before it.
        magnitude: any finite number; its sign does not matter.

    Returns:
        The distance; for bfloat16 0.125 in [16, 32) and 0.25 in [32, 64).
    """
    name = dtype.removeprefix("torch.")
    # frexp gives a fraction in [0.5, 1), hence an exponent one above the usual one.
    exponent = math.frexp(magnitude)[1] - 1 if magnitude else MIN_EXPONENT[name]
    return math.ldexp(1.0, max(exponent, MIN_EXPONENT[name]) - (SIGNIFICANT_BITS[name] - 1))


def is_known(dtype: str) -> bool:
    """Say whether a format's rounding is known here."""
    return dtype.removeprefix("torch.") in SIGNIFICANT_BITS


def gap_in_ulp(dtype: str, logits: Sequence[float]) -> float:
    """Return the distance between the largest and the smallest logit in ULP at the largest magnitude.

    Infinite or NaN logits, and unknown formats, give infinity: such a gap is never a near-tie.
    """
    if not is_known(dtype) or not all(math.isfinite(logit) for logit in logits):
        return math.inf
    return (max(logits) - min(logits)) / ulp(dtype, max(abs(logit) for logit in logits))


def is_near_tie(gap_ulp: float) -> bool:
    """Say whether a gap lies within the rounding of the logits themselves."""
    return gap_ulp <= NEAR_TIE_ULP
