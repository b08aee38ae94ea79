"""Assembly: the right parts from a configuration, and clear refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from jetspec_engine.config import LINEAR, PLAIN, ServeConfig, TreeConfig
from jetspec_engine.embedded import assembly, attention_choice, memory
from jetspec_engine.embedded.assembly import build_engine
from jetspec_engine.embedded.device import pick_device, pick_dtype
from jetspec_engine.embedded.memory import size_of_cache
from jetspec_engine.errors import ArtifactError, ConfigError, UnavailableError
from jetspec_engine.models import store
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.records import Progress
from support.tiny_models import make_tiny_target
from support.tiny_pairs import CONTEXT, assembled_rig, make_tiny_pair

PROMPT = tuple(range(10, 40))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return make_tiny_pair(tmp_path_factory.mktemp("pair"))


def build(pair: dict[str, str], **config: Any) -> None:
    build_engine(ServeConfig(**{**pair, "device": "cpu", **config}), lambda progress: None).close()


def test_R1_info_says_what_runs(pair: dict[str, str]) -> None:
    with assembled_rig(pair, dtype="float32", tree=TreeConfig(width=4, budget=16)) as rig:
        info = rig.engine.info()
    assert info["engine"] == "embedded"
    assert (info["target"], info["head"], info["drafter"]) == (pair["target"], pair["head"], "head")
    assert (info["dtype"], info["device"], info["is_graph"], info["tp_size"]) == ("float32", "cpu", False, 1)
    assert info["draft_depth"] == 7
    assert info["max_seq_len"] == CONTEXT
    assert info["tree"]["budget"] == 16
    assert info["max_tree"] == {"width": 8, "budget": 128}
    assert info["head_is_causal"] is True
    assert info["attention"]
    assert info["row_policy"]
    assert info["notes"] == []
    json.dumps(dict(info))  # travels over HTTP as it is


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_real_pair_decodes_alike_at_every_width(pair: dict[str, str], dtype: str) -> None:
    texts = []
    with assembled_rig(pair, dtype=dtype, max_budget=64) as rig:
        for tree in (PLAIN, LINEAR, TreeConfig(width=8, budget=16), TreeConfig(width=4, budget=64, rule="top2gap")):
            rig.engine.set_tree(tree)
            rig.engine.flush_cache()
            texts.append(rig.run(PROMPT, max_new_tokens=40, ignore_eos=True).ids)
        scores = rig.engine.score((*PROMPT, *texts[0]), len(PROMPT), 1)
    assert len(texts[0]) == 40
    assert texts.count(texts[0]) == len(texts)
    assert [score.top[0][0] for score in scores] == texts[0]


def test_R24_warm_up_leaves_nothing_behind_and_is_not_counted(pair: dict[str, str]) -> None:
    with assembled_rig(pair) as rig:
        counters = rig.engine.counters()
        assert counters["pages_free"] == counters["pages_total"] > 0
        assert counters["requests_finished"] == counters["emitted_tokens"] == counters["rounds"] == 0
        assert rig.run(PROMPT, max_new_tokens=2).stats.num_cached_tokens == 0


def test_case_19_a_head_with_a_shorter_context_limits_the_context_and_says_so(tmp_path: Path) -> None:
    pair = make_tiny_pair(tmp_path, max_position_embeddings=64)
    with assembled_rig(pair) as rig:
        assert rig.engine.info()["max_seq_len"] == 64
        assert rig.engine.info()["notes"] == ["context limited to 64 tokens: the draft head was made for no more"]
        result = rig.run(tuple(range(10, 70)), max_new_tokens=20, ignore_eos=True)
        assert len(result.ids) == 4
        assert result.finish.kind == "length"
    with pytest.raises(ConfigError, match="max_seq_len: 65, expected at most 64"):
        build(pair, max_seq_len=65)
    with assembled_rig(pair, max_seq_len=32) as rig:
        assert rig.engine.info()["max_seq_len"] == 32
        assert rig.engine.info()["notes"] == []


def test_R29_a_head_of_a_sibling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="bos_token_id: 9"):
        build(make_tiny_pair(tmp_path, bos_token_id=9))


def test_a_missing_model_is_refused(pair: dict[str, str]) -> None:
    with pytest.raises(ArtifactError, match="no such model"):
        build({**pair, "target": "no-such-model"})


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"target": "org/huge", "device": "cuda:99"}, UnavailableError),
        ({"target": "org/huge"}, ArtifactError),
        ({"target": "org/huge", "head": "no-such-head"}, ArtifactError),
        ({"target": "smolm2-135m"}, ArtifactError),
    ],
)
def test_what_cannot_be_is_refused_before_a_target_is_pulled(
    config: dict[str, str], error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pull(name: str, *_: object) -> None:
        raise AssertionError(f"{name} was pulled")

    monkeypatch.setattr(store, "pull_hub_model", pull)
    monkeypatch.setattr(store, "pull_entry", pull)
    with pytest.raises(error, match=r"device cuda:99|no draft head|no-such-head|smolm2-135m.*no such model"):
        build({"cache_dir": str(tmp_path)}, **config)


def test_R29_a_target_without_a_tokenizer_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    pair = make_tiny_pair(tmp_path)
    target = Path(pair["target"])
    (target / "tokenizer.json").unlink()
    (target / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: missing"):
        build_engine(ServeConfig(**pair, device="cpu"), lambda progress: None)


def test_R29_a_target_given_as_a_head_is_told_so(tmp_path: Path) -> None:
    pair = make_tiny_pair(tmp_path)
    with pytest.raises(ArtifactError, match="expected a draft head's configuration, not a target's"):
        build_engine(ServeConfig(**{**pair, "head": pair["target"]}, device="cpu"), lambda progress: None)


def test_stand_ins_come_by_name_with_their_options(pair: dict[str, str]) -> None:
    with assembled_rig(pair, tree=PLAIN) as rig:
        expected = rig.run(PROMPT, max_new_tokens=30, ignore_eos=True).ids
    recordings = [{"prompt_ids": PROMPT, "continuation_ids": expected}]
    tree = TreeConfig(width=3, budget=24)
    accept = {}
    for name in ("right", "wrong", "random", "replay"):
        options = {"recordings": recordings, "depth": 5}
        with assembled_rig(pair, drafter=name, drafter_options=options, tree=tree) as rig:
            assert rig.engine.info()["draft_depth"] == 5
            assert rig.engine.info()["head"] is None
            result = rig.run(PROMPT, max_new_tokens=30, ignore_eos=True)
            assert result.ids == expected
            accept[name] = result.stats.accept_length
    assert accept["right"] == 5.0
    assert accept["replay"] > 2.0
    assert accept["wrong"] == 1.0


def test_a_stand_in_of_the_default_depth_and_bad_options(pair: dict[str, str]) -> None:
    with assembled_rig(pair, drafter="random") as rig:
        assert rig.engine.info()["draft_depth"] == 15
    with pytest.raises(ConfigError, match="drafter_options: unknown key 'speed'"):
        build(pair, drafter="random", drafter_options={"speed": 1})
    with pytest.raises(ConfigError, match="drafter_options: unknown key 'seed'"):
        build(pair, drafter_options={"seed": 1})
    with pytest.raises(ConfigError, match="drafter: 'rigth'"):
        build(pair, drafter="rigth")
    with pytest.raises(ConfigError, match="depth: 'deep'"):
        build(pair, drafter="random", drafter_options={"depth": "deep"})


def test_progress_is_told_and_threads_are_set(pair: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    build_engine(ServeConfig(**pair, device="cpu", dtype="float32", num_threads=3), told.append).close()
    assert threads == [3]
    assert [progress.label for progress in told] == [f"loading {pair['target']} in float32 on cpu", "warming up"]


def test_an_engine_that_cannot_warm_up_is_closed_and_the_reason_told(
    pair: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(assembly.DecoderTarget, "verify", lambda self, items: 1 / 0)
    real = assembly.EmbeddedEngine.close
    monkeypatch.setattr(assembly.EmbeddedEngine, "close", lambda self: (closed.append(1), real(self)))
    with pytest.raises(Exception, match="warm-up: ZeroDivisionError"):
        build(pair)
    assert closed == [1]


def test_R21_devices_are_taken_as_named() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    for name in ("gpu", "mps", "cuda:x"):
        with pytest.raises(ConfigError, match=f"device: '{name}'"):
            pick_device(name)
    with pytest.raises(UnavailableError, match="device cuda:99"):
        pick_device("cuda:99")


def test_R21_every_visible_device_can_be_named_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    for name in ("cuda:2", "cuda:9"):
        with pytest.raises(UnavailableError, match=f"device {name}: 2 CUDA devices here"):
            pick_device(name)


def test_auto_is_bfloat16_only_where_the_processor_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for has_avx512_bf16, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=has_avx512_bf16: answer)
        assert pick_dtype("auto", cpu) == expected
        assert pick_dtype("float32", cpu) == torch.float32
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16


def test_R35_the_pool_holds_one_full_sequence_whatever_memory_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DecoderConfig.from_folder(make_tiny_target(tmp_path / "target"))
    cpu = torch.device("cpu")
    bytes_a_slot = memory.slot_bytes(config, cpu, 128)

    def size(slots: int, running: int) -> int:
        return size_of_cache(bytes_a_slot, cpu, page_size=16, sequence_slots=slots, max_running=running).num_pages

    assert size(100, 4) == 28
    assert size(96, 4) == 24
    monkeypatch.setattr(memory, "CPU_STATE_BYTES", 16 * 10 * bytes_a_slot)
    assert size(100, 4) == 10
    assert size(320, 4) == 20


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_slot_is_counted_with_the_bytes_it_takes(
    pair: dict[str, str], is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_fast:
        monkeypatch.setattr(attention_choice, "probe_scores", lambda *_: False)
        monkeypatch.setattr(attention_choice, "probe_sequential", lambda *_: False)
    with assembled_rig(pair) as rig:
        state, config = rig.engine._target.state, DecoderConfig.from_folder(Path(pair["target"]))
        counted = memory.slot_bytes(config, torch.device("cpu"), 128)
        assert counted == (state.keys[:, :, :1].nbytes + state.values[:, :, :1].nbytes)
        assert state.num_bytes >= counted * rig.engine._pool.num_pages * 16
