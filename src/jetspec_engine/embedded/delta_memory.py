"""How much memory recurrent states take: the formulas of ``delta_state`` in bytes, and which budgets fit.

Knows shapes and numbers only, loads no torch and no weights.

Source of the published shape: the model card of Qwen/Qwen3.6-35B-A3B (40 layers, three of four Gated DeltaNet, 16 key
and 32 value heads of 128), convolution of 4 as in transformers' ``Qwen3_5MoeTextConfig``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jetspec_engine.errors import ArtifactError, ConfigError
from jetspec_engine.models import store
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.layer_kinds import FLOAT32_BYTES, DeltaShape

BFLOAT16_BYTES = 2
SHOWN_BUDGET = 64
PUBLISHED_NAME = "Qwen3.6-35B-A3B"
PUBLISHED_SHAPE = DeltaShape(
    num_key_heads=16,
    num_value_heads=32,
    key_dim=128,
    value_dim=128,
    conv_size=4,
    is_grouped=False,
    layers=(True, True, True, False) * 10,
)


def input_bytes(shape: DeltaShape, itemsize: int) -> int:
    """Return X, one row's inputs to one layer: keys for every value head, values, two gates, convolution channels."""
    floats = shape.num_value_heads * (shape.key_dim + shape.value_dim + 2)
    return floats * FLOAT32_BYTES + shape.conv_channels * itemsize


def sequence_bytes(shape: DeltaShape, itemsize: int) -> int:
    """Return what one committed sequence keeps: ``L * (S + (conv_size - 1) * C)``."""
    kept = (shape.conv_size - 1) * shape.conv_channels * itemsize
    return shape.num_layers * (shape.state_bytes + kept)


def tree_bytes(shape: DeltaShape, itemsize: int, num_nodes: int) -> int:
    """Return what one sequence's round of ``num_nodes`` takes at most, beside what is committed.

    ``B * L * X`` until the commit, and the larger of two things: the states of one layer while it is scanned, at most
    ``2 * B * S``, and a chain's last states, ``L * S`` beside three of one layer.
    """
    kept = num_nodes * shape.num_layers * input_bytes(shape, itemsize)
    return kept + max(2 * num_nodes, shape.num_layers + 3) * shape.state_bytes


def check_budget(
    shape: DeltaShape, itemsize: int, *, budget: int, num_sequences: int, room_for: Callable[[int], int]
) -> None:
    """Refuse a budget whose trees cannot fit, with the largest that can.

    Args:
        shape: of the layers.
        itemsize: of the model's dtype.
        budget: B, the largest a server may switch to.
        num_sequences: sequences verified at once.
        room_for: bytes that a server for a budget leaves to their trees, beside everything else.

    Raises:
        ConfigError: it does not fit.
    """

    def needed(nodes: int) -> int:
        return num_sequences * tree_bytes(shape, itemsize, nodes)

    if needed(budget) <= room_for(budget):
        return
    largest = next((nodes for nodes in range(budget - 1, 0, -1) if needed(nodes) <= room_for(nodes)), 0)
    many = f" in {num_sequences} requests at once" if num_sequences > 1 else ""
    what = f"budget: trees of {budget} nodes{many} take {size_text(needed(budget))} of recurrent states"
    left = size_text(max(room_for(budget), 0))
    if not largest:
        hint = "lower --max-running or --max-seq-len, or serve on a device with more memory"
        raise ConfigError(f"{what}, and {left} are left: not even one node fits", hint=hint)
    raise ConfigError(
        f"{what}, expected at most {left}: the largest budget that fits is {largest}",
        hint=f"--max-budget {largest} (and --budget no larger), or a lower --max-running",
    )


def describe_states(shape: DeltaShape, itemsize: int, budget: int) -> dict[str, Any]:
    """Return a target's numbers for people: the same keys whatever the target."""
    return {
        "recurrent_layers": shape.num_layers,
        "sequence_bytes": sequence_bytes(shape, itemsize),
        f"tree_of_{budget}_nodes_bytes": tree_bytes(shape, itemsize, budget),
        f"if_the_states_of_all_{budget}_nodes_were_kept_bytes": budget * shape.num_layers * shape.state_bytes,
    }


class TreeStates:
    """What ``doctor`` says of recurrent states. Found through the registry."""

    def report(self, target: str, cache_dir: Path) -> Mapping[str, Any]:
        """Return the numbers of the published shape and of one target, in bfloat16, at a budget of 64.

        Args:
            target: a folder, a catalogue name or a Hugging Face id; never downloaded.
            cache_dir: folder of pulled models.

        Returns:
            For each of the two its numbers, or one line that says why there are none.
        """
        numbers = {PUBLISHED_NAME: describe_states(PUBLISHED_SHAPE, BFLOAT16_BYTES, SHOWN_BUDGET)}
        try:
            shape = DecoderConfig.from_folder(store.resolve(target, cache_dir)).delta
        except ArtifactError as error:
            return {**numbers, target: error.what}
        own = "no recurrent layers" if shape is None else describe_states(shape, BFLOAT16_BYTES, SHOWN_BUDGET)
        return {**numbers, target: own}


def states_note(shape: DeltaShape, itemsize: int, budget: int) -> str:
    """Return one line for whoever starts a server."""
    own, tree = size_text(sequence_bytes(shape, itemsize)), size_text(tree_bytes(shape, itemsize, budget))
    return f"recurrent states: {own} a sequence, and at most {tree} for its tree of {budget} nodes"


def size_text(num_bytes: int) -> str:
    """Return a number of bytes for people, in binary units."""
    value, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f} {units[0]}"
