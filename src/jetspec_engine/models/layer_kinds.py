"""What a layer needs to be told when it is not dense attention with a dense MLP.

Knows numbers only: no tensor, no forward, no file. Both records say for every layer whether it is of their kind.
"""

from dataclasses import dataclass

FLOAT32_BYTES = 4


def state_bytes(num_value_heads: int, key_dim: int, value_dim: int, *, itemsize: int = FLOAT32_BYTES) -> int:
    """Return S, one recurrent state of one Gated DeltaNet layer: a (key_dim, value_dim) matrix for every value head."""
    return num_value_heads * key_dim * value_dim * itemsize


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """Mixture-of-experts MLPs.

    Attributes:
        num_experts: routed experts of a layer.
        num_chosen: experts a token goes to.
        inner_size: of each routed expert.
        shared_size: inner size of the expert every token goes to, behind a gate; None without one.
        is_normed: the chosen experts' probabilities are scaled to a sum of one.
        layers: per layer, whether its MLP is of this kind.
    """

    num_experts: int
    num_chosen: int
    inner_size: int
    shared_size: int | None
    is_normed: bool
    layers: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class DeltaShape:
    """Gated DeltaNet layers: a short causal convolution before a recurrent state per value head.

    Attributes:
        num_key_heads: divides num_value_heads; a key head serves several value heads.
        num_value_heads: recurrent states of a layer.
        key_dim, value_dim: a state is (key_dim, value_dim).
        conv_size: taps of the convolution, a token's own included.
        is_grouped: the checkpoint stores q, k, v and z (and b and a) interleaved by key head in one matrix.
        layers: per layer, whether it is of this kind.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_size: int
    is_grouped: bool
    layers: tuple[bool, ...]

    @property
    def key_size(self) -> int:
        """Width of all heads' keys, and of their queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of all heads' values."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """What is convolved: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def state_bytes(self) -> int:
        """S, one state of one layer as the embedded engine keeps it, in float32."""
        return state_bytes(self.num_value_heads, self.key_dim, self.value_dim)

    @property
    def num_layers(self) -> int:
        """Layers of this kind."""
        return sum(self.layers)
