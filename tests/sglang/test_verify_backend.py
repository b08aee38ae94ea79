"""A verify is ours by both ways SGLang asks a backend, whatever the backend; its own verify is never reached."""

import importlib
import types

import pytest

torch = pytest.importorskip("torch")

from jetspec_engine.errors import ConfigError  # noqa: E402
from jetspec_engine.sglang_backend.verify_backend import TreeVerify, check_layers, teach_trees  # noqa: E402

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


def layers(*changes):
    """A model of attention layers of two heads of 64 each."""
    from sglang.srt.layers.radix_attention import RadixAttention

    plain = {"num_heads": 2, "head_dim": 64, "scaling": 1.0, "num_kv_heads": 1}
    made = [RadixAttention(**{**plain, **change}, layer_id=place) for place, change in enumerate(changes)]
    return torch.nn.ModuleList([*made, torch.nn.Linear(3, 3)])


def pool(dtype=torch.bfloat16):
    return types.SimpleNamespace(store_dtype=dtype)


def test_the_scratch_is_made_for_the_widest_layers(plugged):
    assert check_layers(layers({}, {"num_heads": 6}, {"head_dim": 128}), torch.bfloat16, pool()) == (6, 128)
    # A model of recurrent layers alone still has the smallest scratch.
    assert check_layers(layers(), torch.bfloat16, pool()) == (1, 16)


REFUSED = [
    ("heads of 80 and 80", {"head_dim": 80}),
    ("heads of 8 and 8", {"head_dim": 8}),
    ("heads of 64 and 128", {"v_head_dim": 128}),
    ("an attention variant", {"logit_cap": 30.0}),
    ("an attention variant", {"is_cross_attention": True}),
    ("an attention variant", {"use_irope": True}),
    ("an attention variant", {"attn_type": "ENCODER_ONLY"}),
]


@pytest.mark.parametrize(("words", "change"), REFUSED, ids=str)
def test_R36_a_layer_that_a_verify_does_not_compute_is_refused(plugged, words, change):
    from sglang.srt.layers.radix_attention import AttentionType

    if "attn_type" in change:
        change = {"attn_type": AttentionType[change["attn_type"]]}
    with pytest.raises(ConfigError, match=words) as caught:
        check_layers(layers({}, change), torch.bfloat16, pool())
    assert "target: 1" in caught.value.what
    assert caught.value.hint


def test_R34_a_cache_of_another_dtype_and_one_of_its_own_for_windows_are_refused(plugged):
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    with pytest.raises(ConfigError, match="--kv-cache-dtype: torch") as caught:
        check_layers(layers({}), torch.bfloat16, pool(torch.float8_e4m3fn))
    assert "auto" in caught.value.hint
    with pytest.raises(ConfigError, match="a KV pool of their own") as caught:
        check_layers(layers({}), torch.bfloat16, object.__new__(SWAKVPool))
    assert "swa" in caught.value.hint
