"""Experts stored in one tensor a layer come back one by one."""

from pathlib import Path

import pytest
import torch

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.expert_names import single_experts
from jetspec_engine.models.random_target import write_random_target


def test_experts_in_one_tensor_are_views_under_single_names(tmp_path: Path) -> None:
    config = write_random_target(tmp_path, "qwen3.5-moe")
    both, down = torch.randn(8, 64, 64), torch.randn(8, 64, 32)
    found = dict(single_experts("layers.2.mlp.experts.gate_up_proj", both, config, "file: name"))
    found |= dict(single_experts("layers.2.mlp.experts.down_proj", down, config, "file: name"))
    assert len(found) == 24
    assert torch.equal(found["layers.2.mlp.experts.3.gate_proj.weight"], both[3, :32])
    assert torch.equal(found["layers.2.mlp.experts.3.up_proj.weight"], both[3, 32:])
    assert found["layers.2.mlp.experts.7.down_proj.weight"].data_ptr() == down[7].data_ptr()


def test_other_tensors_pass_and_wrong_shapes_are_named(tmp_path: Path) -> None:
    config = write_random_target(tmp_path, "qwen3.5-moe")
    weight = torch.zeros(3)
    assert dict(single_experts("norm.weight", weight, config, "where")) == {"norm.weight": weight}
    with pytest.raises(ArtifactError, match=r"file: name: shape \[8, 32, 64\], expected \[8, 64, 32\]"):
        dict(single_experts("layers.0.mlp.experts.down_proj", torch.zeros(8, 32, 64), config, "file: name"))
