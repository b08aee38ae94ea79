"""What JETSPEC refuses on SGLang, and what it must not refuse."""

from dataclasses import replace

import pytest

from jetspec_engine.errors import ConfigError, UnavailableError
from jetspec_engine.sglang_backend.recurrent.limits import RecurrentFacts, check_room
from jetspec_engine.sglang_backend.refusals import ServerFacts, check_server, check_version

TREE = ServerFacts(max_width=8)
CHAIN = ServerFacts(max_width=1)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.18", "0.5.17.post1", "0.5.17rc1", "unknown", ""])
def test_another_version_is_refused(version):
    with pytest.raises(UnavailableError, match=r"expected 0\.5\.17"):
        check_version(version)
    check_version("0.5.17")


AT_ANY_WIDTH = {
    "--device: cpu": {"device": "cpu"},
    "--speculative-draft-model-path: missing": {"draft_path": ""},
    "--pp-size: 2": {"pp_size": 2},
    "--disaggregation-mode: prefill": {"disaggregation_mode": "prefill"},
    "--disaggregation-mode: decode": {"disaggregation_mode": "decode"},
    "--enable-dp-attention": {"has_dp_attention": True},
    "MLA": {"is_mla": True},
    "Mamba2": {"recurrent": RecurrentFacts(kind="Mamba2")},
}


@pytest.mark.parametrize("facts", [TREE, CHAIN], ids=["tree", "chain"])
@pytest.mark.parametrize(("words", "changes"), AT_ANY_WIDTH.items())
def test_refused_at_any_width(facts, words, changes):
    check_server(facts)
    with pytest.raises(ConfigError) as caught:
        check_server(replace(facts, **changes))
    assert words in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_backends": ("trtllm_mha",)},  # R14: verifies chains only
        {"attention_backends": ("triton", "torch_native")},  # decode counts as well as prefill
        {"attention_backends": (None,)},
        {"attention_backends": ("fa4",), "page_size": 16},
        {"attention_backends": ("triton",), "page_size": 16, "has_sliding_window": True},
        {"has_draft_window": True},
        # Item 4 of hybrid targets: states that a tree's verify would read otherwise than they were written.
        {"recurrent": RecurrentFacts(backends={"--linear-attn-backend": "flashinfer"})},
        {"recurrent": RecurrentFacts(backends={"--linear-attn-decode-backend": "cutedsl"})},
        {"recurrent": RecurrentFacts(options=("--enable-linear-replayssm-spec",))},
    ],
)
def test_R14_refused_for_a_tree_only(changes):
    with pytest.raises(ConfigError) as caught:
        check_server(replace(TREE, **changes))
    assert "--speculative-dflash-tree-max-width 1" in caught.value.hint
    check_server(replace(CHAIN, **changes))


@pytest.mark.parametrize("backend", ["triton", "flashinfer", "fa3", "fa4"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_R14_backends_and_pages_that_take_a_tree(backend, page_size):
    if (backend, page_size) != ("fa4", 16):
        check_server(replace(TREE, attention_backends=(backend, backend), page_size=page_size))


def test_a_chain_that_may_become_a_tree_is_held_to_a_trees_limits():
    with pytest.raises(ConfigError):
        check_server(replace(CHAIN, max_width=8, attention_backends=("trtllm_mha",)))


@pytest.mark.parametrize("facts", [TREE, CHAIN], ids=["tree", "chain"])
def test_R13_gated_delta_layers_run_at_any_width(facts):
    check_server(replace(facts, recurrent=RecurrentFacts(backends={"--linear-attn-backend": "triton"})))


QWEN36 = RecurrentFacts(row_bytes=30 * 32 * 128 * 128 * 4)
H200 = 143771 * (1 << 20)


def test_states_that_no_gpu_holds_are_refused_with_the_most_that_fits():
    with pytest.raises(ConfigError) as caught:
        check_room(QWEN36, requests=48, rows=64, gpu_bytes=H200)
    assert "48 with 64 verify rows keep 197.3 GB" in caught.value.what
    assert "--max-running-requests 36, or budgets up to 48" in caught.value.hint
    check_room(QWEN36, requests=36, rows=64, gpu_bytes=H200)
    check_room(QWEN36, requests=48, rows=48, gpu_bytes=H200)
    with pytest.raises(ConfigError):
        check_room(QWEN36, requests=37, rows=64, gpu_bytes=H200)
    with pytest.raises(ConfigError):
        check_room(QWEN36, requests=48, rows=49, gpu_bytes=H200)


def test_what_is_not_known_is_not_refused():
    check_room(QWEN36, requests=48, rows=64, gpu_bytes=0)
    check_room(RecurrentFacts(), requests=48, rows=64, gpu_bytes=H200)


def test_one_request_that_does_not_fit_is_told_so():
    with pytest.raises(ConfigError) as caught:
        check_room(QWEN36, requests=1, rows=1024, gpu_bytes=40 << 30)
    assert "fewer requests do not help" in caught.value.hint
