"""Float32 takes SGLang's plain forwards, half precision its own."""

import pytest

torch = pytest.importorskip("torch")

from jetspec_engine.sglang_backend import float_layers  # noqa: E402


class Layer:
    def forward_cuda(self, *given):
        return "fused", given

    def forward_native(self, *given):
        return "plain", given


@pytest.mark.parametrize(("dtype", "way"), [(torch.float32, "plain"), (torch.bfloat16, "fused"), (torch.half, "fused")])
def test_the_dtype_decides(dtype, way):
    x, layer = torch.zeros(1, dtype=dtype), Layer()
    assert float_layers.normalise_or_activate(Layer.forward_cuda, layer, x, 1) == (way, (x, 1))
    assert float_layers.rotate(Layer.forward_cuda, layer, 1, x, x)[0] == way
    assert float_layers.rotate(Layer.forward_cuda, layer, 1, x, x, None, "kv")[0] == "fused"
