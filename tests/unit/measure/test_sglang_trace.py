"""A round taken apart by phase, on a trace whose phases are known."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from measure.sglang_trace import STATE, Work, _phase_of_verify, phase_times, read_trace

_spec = importlib.util.spec_from_file_location("fake_server_events", Path(__file__).with_name("fake_server.py"))


def events(*args, **options):
    # The script reads its command line when it is imported; only its events are wanted here.
    module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(module)
    return module.trace_events(*args, **options)


def write(path, made):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": made}, file)
    return path


def test_a_tree_rounds_phases_add_up_to_its_work(tmp_path):
    found = phase_times(read_trace(write(tmp_path / "t.json.gz", events(5, has_tree=True))))
    assert found["rounds"] == 4  # the last has no end
    assert {phase: time for phase, time in found["us"].items() if time} == {
        "draft forward": 60.0, "LM head for drafts": 50.0, "top W": 7.0, "script (measurement only)": 1.0,
        "build and layout": 31.0, "stage verify": 1.5, "verify: attention": 350.0, "verify: rest": 500.0,
        "accept and move": 13.0, "append to the head's cache and next inputs": 10.0,
    }  # fmt: skip
    assert found["busy_us"] == pytest.approx(sum(found["us"].values()))
    assert found["span_us"] > found["busy_us"]
    assert found["longest"][0] == {"kernel": "gemm", "us_a_round": 560.0, "a_round": 80.0}


def test_a_linear_round_has_no_tree_phases(tmp_path):
    found = phase_times(read_trace(write(tmp_path / "t.json.gz", events(4, has_tree=False))))
    assert found["us"]["top W"] == found["us"]["build and layout"] == 0.0
    assert found["us"]["LM head for drafts"] == 50.0
    assert found["us"]["accept and move"] == 18.0


def test_a_trace_without_graphs_says_so(tmp_path):
    made = [event for event in events(3, has_tree=True) if event["cat"] != "kernel"]
    assert "no CUDA graph" in phase_times(read_trace(write(tmp_path / "t.json.gz", made)))["error"]


@pytest.mark.parametrize("name", [*STATE, "_delta_1", "fused_sigmoid_gating_delta_rule_update_kernel"])
def test_state_kernels_of_a_hybrid_target_are_a_phase_of_their_own(name):
    work = Work(name=name, start=0.0, length=1.0, launch=1, is_kernel=True)
    assert _phase_of_verify(work) == "verify: recurrent state"
