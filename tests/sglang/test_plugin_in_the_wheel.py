"""Our plugin inside the real SGLang 0.5.17: registered, its options read, its refusals raised before any loading."""

import copy
import dataclasses
import json
import pickle
from importlib import metadata

import pytest

from jetspec_engine.errors import ArtifactError, ConfigError, EngineError, UnavailableError
from jetspec_engine.sglang_backend import command_line, launch, plugin
from support.sglang_configs import HEAD

LINEAR = ("--speculative-dflash-tree-width=1", "--speculative-dflash-tree-max-width=1")


@pytest.fixture
def algorithm(plugged):
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return SpeculativeAlgorithm.from_string("jetspec")


def test_the_entry_point_registers_the_algorithm(algorithm):
    assert repr(algorithm) == "CustomSpecAlgo('JETSPEC')"
    assert type(algorithm).__name__ == "JetSpecAlgorithm"


def test_every_question_sglang_asks_an_algorithm_has_an_answer(algorithm):
    """Not only the names that SGLang's own conformity check looks at."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    questions = [name for name, value in vars(SpeculativeAlgorithm).items() if callable(value) and name[0] != "_"]
    assert {"need_topk", "create_future_map", "carries_draft_hidden_states", "is_dflash_family"} <= set(questions)
    assert [name for name in questions if not callable(getattr(algorithm, name, None))] == []


def test_answers_are_stock_dflashs(algorithm):
    """Except that it is not DFLASH itself, which only another vendor's graph runner asks."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    stock = SpeculativeAlgorithm.DFLASH
    names = [
        name
        for name in vars(SpeculativeAlgorithm)
        if name.startswith(("is_", "supports_", "need_", "has_", "carries_"))
    ]
    differing = [
        name for name in names if getattr(algorithm, name) and getattr(algorithm, name)() != getattr(stock, name)()
    ]
    assert differing == ["is_dflash"]


def test_the_relay_between_rounds_carries_no_hidden_states(algorithm, resolve):
    """SGLang decides this by the algorithm's name, which is not ours to change."""
    import torch
    from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload
    from sglang.srt.runtime_context import get_context

    from jetspec_engine.sglang_backend.algorithm import JetSpecFutureMap

    def needs_hidden_states(kind):
        relay = object.__new__(kind)
        relay.spec_algo, relay.device, relay.req_pool_size = algorithm, torch.device("cpu"), 3
        payload = RelayPayload(bonus_tokens=torch.zeros(1), hidden_states=torch.ones(1, 2))
        relay._lazy_init_forward_buf(payload)
        assert payload.hidden_states is not None
        assert not relay.need_topk
        return relay.need_hidden_states

    with get_context().preserve_config():
        get_context().set_server_args(resolve(*LINEAR))
        assert needs_hidden_states(FutureMap)  # the wheel would relay them for an unknown name
        assert not needs_hidden_states(JetSpecFutureMap)


def test_width_1_is_the_stock_worker(algorithm, resolve):
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    assert algorithm.create_worker(resolve(*LINEAR)) is DFlashWorkerV2


def test_a_configuration_made_without_our_hook_has_no_worker(algorithm, resolve):
    arguments = resolve(*LINEAR)
    del arguments.__dict__[command_line.SETTINGS_ATTRIBUTE]
    with pytest.raises(EngineError, match="lacks JetSpec's settings"):
        algorithm.create_worker(arguments)


def test_a_linear_server_resolves_as_stock_dflash_does(resolve):
    ours, stock = resolve(*LINEAR), resolve(algorithm="DFLASH")
    assert ours.speculative_algorithm == "JETSPEC"
    assert ours.speculative_num_draft_tokens == HEAD["block_size"]

    def plain(arguments):
        return {f.name: getattr(arguments, f.name) for f in dataclasses.fields(arguments)}

    first, second = plain(ours), plain(stock)
    different = [name for name in first if repr(first[name]) != repr(second[name])]
    assert set(different) <= {"speculative_algorithm", "random_seed", "model_config", "instance_id"}, different


def test_the_settings_travel_with_sglangs_own(resolve):
    from sglang.srt.runtime_context import get_context

    arguments = resolve(*LINEAR)
    expected = {"tree": {"rule": "best_first", "width": 1, "budget": None, "beta": 1.0, "g0": 1.0, "keep_spine": False},
                "max_width": 1, "budgets": [], "draft_script": None}  # fmt: skip
    for travelled in (arguments, pickle.loads(pickle.dumps(arguments)), copy.deepcopy(arguments)):
        assert getattr(travelled, command_line.SETTINGS_ATTRIBUTE) == expected
    # What a scheduler answers to /server_info is this, and the launcher's proof looks for it there.
    with get_context().preserve_config():
        get_context().set_server_args(arguments)
        assert get_context().resolved_server_args_dict()[command_line.SETTINGS_ATTRIBUTE] == expected


def test_the_launchers_command_line_is_understood(resolve):
    from jetspec_engine.config import ServeConfig, TreeConfig

    config = ServeConfig(
        tree=TreeConfig(width=1, budget=None), max_width=1, dtype="bfloat16", max_seq_len=256, page_size=1
    )
    words = launch.server_words(config, target="x", head="y", port=1234, gpu=0)
    words = [word for word in words if not word.startswith(("--model-path", "--speculative-draft-model-path"))]
    arguments = resolve(*words)
    assert (arguments.port, arguments.dtype, arguments.context_length) == (1234, "bfloat16", 256)
    assert arguments.max_running_requests == config.max_running
    assert getattr(arguments, command_line.SETTINGS_ATTRIBUTE) == launch.settings_of(config).to_mapping()


def test_the_key_file_is_understood(resolve):
    from jetspec_engine.sglang_backend.hosting import api_key_words

    with api_key_words('a"b: #c') as words:
        assert resolve(*LINEAR, *words).api_key == 'a"b: #c'


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ((), (8, 16)),
        (("--speculative-dflash-tree-width=4",), (8,)),
        (("--speculative-dflash-tree-width=1",), (8,)),
        (("--speculative-dflash-tree-width=4", "--speculative-dflash-tree-budgets=4,64"), (4, 8, 64)),
    ],
)
def test_R17_a_server_that_may_draft_trees_captures_every_budget_and_the_chain(resolve, words, rows):
    from jetspec_engine.sglang_backend.compat import block_size_of, settings_of
    from jetspec_engine.sglang_backend.tree_switch import captured_rows

    arguments = resolve(*words)
    assert captured_rows(settings_of(arguments), block_size_of(arguments) - 1) == rows
    assert (block_size_of(arguments), arguments.speculative_num_draft_tokens) == (8, rows[-1])


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (("--device=cpu",), "--device: cpu"),
        (("--pp-size=2",), "--pp-size: 2"),
        (("--speculative-config", '{"tree_widht": 1}'), "unknown key 'tree_widht'"),
        (("--attention-backend=fa4", "--page-size=16"), "--page-size: 16, fa4"),
    ],
)
def test_refusals_come_before_anything_is_loaded(resolve, words, fact):
    with pytest.raises(ConfigError) as caught:
        resolve(*words)
    assert fact in caught.value.what


def test_R15_another_algorithms_options_are_untouched(resolve):
    arguments = resolve("--speculative-config", '{"num_steps": 3}', algorithm="DFLASH")
    assert not hasattr(arguments, command_line.SETTINGS_ATTRIBUTE)
    with pytest.raises(ConfigError, match="which has no tree"):
        resolve("--speculative-dflash-tree-width=4", algorithm="DFLASH")


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"block_size": 0}, "block_size: 0"),
        ({"is_causal": False}, "causal"),
        ({"sample_from_anchor": True}, "sample_from_anchor"),
    ],
)
def test_a_head_that_would_run_otherwise_than_trained_is_refused(resolve, changes, fact):
    with pytest.raises(ArtifactError) as caught:
        resolve(*LINEAR, head={**HEAD, **changes})
    assert fact in caught.value.what


@pytest.mark.parametrize("key", ["causal_head", "causal", "is_causal"])
@pytest.mark.parametrize("has_layer_types", [True, False])
@pytest.mark.parametrize("value", [True, False, None])
def test_R23_causality_reaches_the_draft_attention(plugged, key, has_layer_types, value):
    import sglang.srt.models.dflash as models
    from sglang.srt.layers.radix_attention import AttentionType
    from transformers import PretrainedConfig

    given = {} if value is None else {key: value}
    nested = {} if key == "is_causal" else given
    config = PretrainedConfig(
        **({"layer_types": ["full_attention"]} if has_layer_types else {}),
        **(given if key == "is_causal" else {}),
        dflash_config={"mask_token_id": 1, **nested},
    )
    _, kind = models._get_dflash_layer_attention_params(config, 0)
    assert kind == (AttentionType.DECODER if value else AttentionType.ENCODER_ONLY)
    # Without our hook the wheel hears of is_causal only, and only beside layer_types.
    _, stock = models._get_dflash_layer_attention_params.__wrapped__(config, 0)
    is_heard = key == "is_causal" and has_layer_types
    assert (stock == kind) == (is_heard or not value)


def test_R23_contradictions_and_bidirectional_windows_are_refused(plugged):
    import sglang.srt.models.dflash as models

    with pytest.raises(ArtifactError):
        models._get_dflash_layer_attention_params({"is_causal": True, "dflash_config": {"causal": False}}, 0)
    windowed = {"layer_types": ["sliding_attention"], "sliding_window": 64}
    with pytest.raises(ArtifactError, match="sliding_attention in a bidirectional head"):
        models._get_dflash_layer_attention_params(windowed, 0)
    window, _ = models._get_dflash_layer_attention_params({**windowed, "is_causal": True}, 0)
    assert window > 0


def test_another_version_registers_nothing(plugged, monkeypatch):
    from sglang.srt.plugins.hook_registry import HookRegistry

    before = json.dumps({name: len(hooks) for name, hooks in HookRegistry._hooks.items()})
    monkeypatch.setattr(metadata, "version", lambda _: "0.5.18")
    with pytest.raises(UnavailableError, match=r"sglang 0\.5\.18: expected 0\.5\.17"):
        plugin.activate()
    assert json.dumps({name: len(hooks) for name, hooks in HookRegistry._hooks.items()}) == before
