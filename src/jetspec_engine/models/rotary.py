"""Rotary angles of a target, as complex unit vectors.

Knows no heads and no state. A pair of dimensions turned by an angle is one complex product, so the forward keeps the
two dimensions of a pair side by side (see ``decoder.paired_rows``) where checkpoints keep them half a head apart.

Source: Su et al. 2021 (arXiv 2104.09864); the llama3 scaling as in the Llama 3.1 release.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig


def rotary_table(config: DecoderConfig, num_positions: int) -> Tensor:
    """Return the rotations of positions 0 .. num_positions - 1.

    Returns:
        (num_positions, head_dim / 2) complex64. The frequencies are float32 as in the reference implementations, the
        angle's sine and cosine are computed in float64.
    """
    frequencies = rotary_frequencies(config)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies).double()
    rotations = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    # Dimensions that are not rotated are turned by nothing: a product with exactly one.
    still = config.head_dim // 2 - rotations.shape[1]
    return torch.cat((rotations, torch.ones(num_positions, still, dtype=rotations.dtype)), 1)


def rotary_frequencies(config: DecoderConfig) -> Tensor:
    """Return (rotated dimensions / 2,) float32 radians a position.

    Raises:
        ArtifactError: a kind of scaling that is not known here.
    """
    dim = config.rotary_dim or config.head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    frequencies = 1.0 / torch.pow(config.rope_theta, exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling["rope_type"] == "linear":
        return frequencies / float(scaling["factor"])
    if scaling["rope_type"] == "llama3":
        return _llama3(frequencies, scaling)
    raise ArtifactError(f"rope_scaling.rope_type: {scaling['rope_type']!r}, expected linear or llama3")


def _llama3(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Keep fast rotations, slow the slow ones down by the factor, and blend those between."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    factor = float(scaling["factor"])
    original = float(scaling["original_max_position_embeddings"])
    wavelengths = 2 * math.pi / frequencies
    share = ((original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * frequencies / factor + share * frequencies
