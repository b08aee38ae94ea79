"""Profiles of rounds: phases, kernels, a trace and the memory floor, from an engine that goes on afterwards."""

import math

import pytest
import torch

from jetspec_engine.config import PLAIN, TreeConfig
from jetspec_engine.embedded.traffic import floor_s, read_bandwidth, round_bytes
from jetspec_engine.errors import EngineError, RequestError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.records import GenerateRequest, SamplingParams
from support.engine_runs import Rig, engine_rig, said
from support.tiny_models import make_tiny_target
from support.tiny_pairs import assembled_rig, make_tiny_pair

PHASES = ["draft", "build", "verify", "accept", "commit"]


def profile(rig: Rig, ids: list[int], num_rounds: int = 4, cap: int = 90) -> dict:
    sampling = SamplingParams(max_new_tokens=cap, ignore_eos=True)
    return dict(
        rig.engine.profile(GenerateRequest(request_id="p", input_ids=tuple(ids), sampling=sampling), num_rounds)
    )


def test_R06_phases_kernels_trace_and_floor_of_a_real_pair(tmp_path):
    with assembled_rig(make_tiny_pair(tmp_path), tree=TreeConfig(width=4, budget=12)) as rig:
        before = rig.run([5, 6, 7], max_new_tokens=20).ids
        found = profile(rig, [5, 6, 7, 8])
        assert found["num_rounds"] == 4
        assert list(found["phase_s"]) == PHASES
        assert found["round_s"] >= max(found["phase_s"].values())
        assert 4 < found["num_context_tokens"] < 90
        kernels = {row["name"]: row for row in found["kernels"]}
        assert any("linear" in name or "mm" in name for name in kernels)
        assert {f"{name}, outside torch" for name in PHASES} <= set(kernels)
        own = [row["self_s"] for row in found["kernels"]]
        assert own[:40] == sorted(own[:40], reverse=True)
        spans = [event for event in found["trace"]["traceEvents"] if event.get("name") == "jetspec verify"]
        assert len([span for span in spans if span.get("ph") == "X"]) >= 4
        assert "host_name" not in found["trace"]
        floor = found["floor"]
        assert floor["gap"]["verify"] == pytest.approx(found["phase_s"]["verify"] / floor["least_s"]["verify"])
        assert rig.run([5, 6, 7], max_new_tokens=20).ids == before
        rig.engine.set_tree(PLAIN)
        assert "draft" not in profile(rig, [5, 6])["floor"]["gap"]


def test_the_floor_counts_every_weight_once_and_a_shared_lm_head_for_both(tmp_path):
    tied = DecoderConfig.from_folder(make_tiny_target(tmp_path / "tied", is_tied=True))
    untied = DecoderConfig.from_folder(make_tiny_target(tmp_path / "untied", is_tied=False))
    one, two = (round_bytes(config, None, torch.float32, 64.0) for config in (tied, untied))
    assert one == two, "an untied embedding is looked up, not read"
    assert one["head"] == 0
    assert one["kv_per_token"] == 64
    least = floor_s(one, 10, 100.0)
    assert least["verify"] == (one["target"] + 640) / 100
    assert 1e8 < read_bandwidth(torch.device("cpu")) < 1e13


def test_a_short_answer_gives_fewer_rounds_or_an_error_and_nothing_is_left_behind():
    with engine_rig("wrong") as rig:
        found = profile(rig, [5, 9, 7], num_rounds=50, cap=9)
        assert found["num_rounds"] == 5
        assert found["floor"] is None
        assert all(math.isfinite(seconds) for seconds in found["phase_s"].values())
        with pytest.raises(EngineError, match="ended before"):
            profile(rig, [5, 9, 7], cap=2)
        with pytest.raises(RequestError):
            profile(rig, [])
        assert rig.run([5, 9, 7], max_new_tokens=6).ids == said([5, 9, 7], 6)
