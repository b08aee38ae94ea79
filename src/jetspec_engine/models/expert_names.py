"""Experts stored in one tensor a layer, as newer checkpoints do, given back one by one under the older names.

``mlp.experts.gate_up_proj`` (experts, 2 * inner, E) and ``mlp.experts.down_proj`` (experts, E, inner) become
``mlp.experts.{i}.gate_proj.weight`` and so on: views, nothing is copied. Knows names and shapes only.
"""

from collections.abc import Iterator

from torch import Tensor

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig

GATE_UP, DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


def single_experts(name: str, tensor: Tensor, config: DecoderConfig, where: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that one stored tensor holds: itself, or every expert's.

    Args:
        name: without the leading ``model.``.
        tensor: as stored.
        config: of the target.
        where: file and name, for messages.

    Raises:
        ArtifactError: experts in one tensor of another shape.
    """
    shape = config.experts
    if shape is None or not name.endswith((GATE_UP, DOWN)):
        yield name, tensor
        return
    is_down = name.endswith(DOWN)
    sizes = (config.hidden_size, shape.inner_size) if is_down else (2 * shape.inner_size, config.hidden_size)
    expected = (shape.num_experts, *sizes)
    if tuple(tensor.shape) != expected:
        raise ArtifactError(f"{where}: shape {list(tensor.shape)}, expected {list(expected)}")
    prefix = name.removesuffix(DOWN if is_down else GATE_UP) + ".mlp.experts"
    for expert, own in enumerate(tensor.unbind(0)):
        parts = {"down_proj": own} if is_down else dict(zip(("gate_proj", "up_proj"), own.chunk(2), strict=True))
        for part, weight in parts.items():
            yield f"{prefix}.{expert}.{part}.weight", weight
