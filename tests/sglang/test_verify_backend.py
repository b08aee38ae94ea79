"""A verify is ours by both ways SGLang asks a backend, whatever the backend; its own verify is never reached."""

import importlib
import types

import pytest

torch = pytest.importorskip("torch")

from jetspec_engine.sglang_backend.verify_backend import TreeVerify, teach_trees  # noqa: E402

ATTENTION = "sglang.srt.layers.attention"
BACKENDS = {
    "triton": f"{ATTENTION}.triton_backend.TritonAttnBackend",
    "flashinfer": f"{ATTENTION}.flashinfer_backend.FlashInferAttnBackend",
    "fa3 and fa4": f"{ATTENTION}.flashattention_backend.FlashAttentionBackend",
    "torch_native": f"{ATTENTION}.torch_native_backend.TorchNativeAttnBackend",
    "of prefill and decode": f"{ATTENTION}.hybrid_attn_backend.HybridAttnBackend",
}
# Whether SGLang's own ``forward`` would come to our ``forward_extend``: why ours cannot go, and when it could.
REACHES_EXTEND = {name: name != "of prefill and decode" for name in BACKENDS}


def backend_of(path):
    """Return a taught backend that was never initialised: nothing of its own can run."""
    module, _, name = path.rpartition(".")
    stock = object.__new__(getattr(importlib.import_module(module), name))
    untouched = types.SimpleNamespace()
    vars(stock).update(spec_attn_is_decode=True, prefill_backend=untouched, decode_backend=untouched)
    state = types.SimpleNamespace(attend=lambda query, *_, **__: query + 1)
    pool = types.SimpleNamespace(set_kv_buffer=lambda *_: None, get_kv_buffer=lambda _: (None, None))
    return teach_trees(stock, state, pool=pool, requests=None)


def verify_by(ask):
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    layer = types.SimpleNamespace(
        layer_id=0, k_scale=None, v_scale=None, tp_q_head_num=2, qk_head_dim=16, scaling=1.0, sliding_window_size=-1
    )
    batch = types.SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY, out_cache_loc=None)
    query = torch.zeros(3, 32)
    return ask(query, query, query, layer, batch, True)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("way", ["forward", "forward_extend"])
def test_a_verify_is_ours(plugged, name, way):
    rows = verify_by(getattr(backend_of(BACKENDS[name]), way))
    assert torch.equal(rows, torch.ones(3, 32))


@pytest.mark.parametrize("name", BACKENDS)
def test_without_our_forward_a_pair_of_backends_would_verify_by_one_of_them(plugged, monkeypatch, name):
    monkeypatch.delattr(TreeVerify, "forward")
    taught = backend_of(BACKENDS[name])
    if REACHES_EXTEND[name]:
        assert torch.equal(verify_by(taught.forward), torch.ones(3, 32))
    else:
        with pytest.raises(AttributeError, match="forward"):
            verify_by(taught.forward)
