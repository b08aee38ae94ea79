"""RMS norms of states and heads, those that multiply by ``1 + weight`` among them.

Knows no layer.
"""

from torch import Tensor
from torch.nn import functional

from jetspec_engine.models.config import DecoderConfig


def gain_of(config: DecoderConfig, weight: Tensor) -> Tensor:
    """Return what a norm multiplies by: its weight, or ``1 + weight`` in float32 where norms are centred on 0."""
    return 1 + weight.float() if config.is_norm_zero_centred else weight


class RowNorm:
    """``x / rms(x) * gain`` over the last dimension.

    Args:
        config: of the target, for its eps and the meaning of weights.
        weight: (E,) as stored.
    """

    def __init__(self, config: DecoderConfig, weight: Tensor) -> None:
        self._gain = gain_of(config, weight)
        self._eps = config.rms_norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return (n, E) in the dtype of x; computed in float32 when the gain is."""
        return functional.rms_norm(x.to(self._gain.dtype), x.shape[-1:], self._gain, self._eps).to(x.dtype)
