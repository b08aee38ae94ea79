"""The target on a CUDA device: its own precision, and the CPU's numbers. Its bits are ``tests/property/embedded``'s."""

import pytest
import torch

from support.decoder_cases import HYBRIDS, VARIANTS, plain_text, tiny_target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_R26_tf32_of_the_process_is_neither_used_nor_changed() -> None:
    matmul = torch.backends.cuda.matmul
    made = tiny_target("llama", torch.float32, device="cuda")
    wanted = plain_text(made, seed=0, count=10)
    found = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        again = plain_text(made, seed=0, count=10)
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = found
    assert torch.equal(again.logits, wanted.logits)


@pytest.mark.parametrize("model_type", [*VARIANTS, *HYBRIDS])
def test_the_device_agrees_with_the_cpu(model_type: str) -> None:
    on_cuda = plain_text(tiny_target(model_type, torch.float32, device="cuda"), seed=1, count=90)
    on_cpu = plain_text(tiny_target(model_type, torch.float32), seed=1, count=90)
    torch.testing.assert_close(on_cuda.logits.cpu(), on_cpu.logits, atol=1e-3, rtol=1e-3)
