"""Where a test runs that is worth running on a GPU too: ``@pytest.mark.parametrize("device", DEVICES)``.

The half on a CUDA device carries the marker ``gpu`` and is no part of the default run.
"""

import pytest
import torch

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)
DEVICES = ("cpu", CUDA)
