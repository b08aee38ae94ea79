"""The comparison of two clients: their command lines against stand-ins, their figures, and the verdict."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.stream_server import stream_server
from support.tiny_models import make_tiny_target

ROOT = Path(__file__).parents[3]
# Does as the other client does: reads its dataset, and appends one line of figures.
OTHER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    words = dict(word.removeprefix("--").split("=", 1) for word in asked if "=" in word)
    lines = [json.loads(line) for line in open(words["dataset-path"])]
    assert len(lines) == int(words["num-prompts"]) and all(len(line["conversations"]) == 2 for line in lines)
    assert words["temperature"] == "0" and "--disable-ignore-eos" in asked
    figures = {f"{point}_{name}_ms": 2.0 for point in ("mean", "median") for name in ("ttft", "tpot", "e2e_latency")}
    figures |= {"output_throughput": 100.0, "completed": len(lines), "total_output_tokens": 16 * len(lines)}
    with open(words["output-file"], "a") as file:
        file.write(json.dumps(figures) + "\\n")
    print(json.dumps({"failure": ""}), flush=True)
"""


@pytest.fixture
def compared(tmp_path):
    other, target, out = tmp_path / "other.py", make_tiny_target(tmp_path / "target"), tmp_path / "clients.json"
    other.write_text(OTHER)

    def run(*words):
        with stream_server() as (url, state):
            command = [sys.executable, "-m", "tests.measure.clients", f"--url={url}", f"--tokenizer={target}"]
            command += [f"--out={out}", f"--work={tmp_path}/w", f"--other={sys.executable} {other}", "--new=16", *words]
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == 0, ran.stderr
        return json.loads(out.read_text()), ran.stdout, state

    return run


def test_both_clients_ask_the_same_and_are_compared(compared):
    document, said, state = compared("--turns=2", "--copies=1", "--concurrency=1,4")
    assert document["failures"] == []
    names = [(one["client"], one["concurrency"]) for one in document["passes"]]
    ours, other = "jetspec bench", "sglang.bench_serving"
    assert names == [(ours, 1), (other, 1), (ours, 4), (other, 4), (other, 1), (ours, 1), (other, 4), (ours, 4)]
    assert {one["num_tokens"] for one in document["passes"]} == {160}
    assert {one["num_requests"] for one in document["passes"]} == {10}
    row = next(row for row in document["compared"] if (row["concurrency"], row["figure"]) == (4, "tok_s"))
    assert row[other] == {"median": 100.0, "min": 100.0, "max": 100.0, "passes": 2}
    assert len(row["ratio_by_turn"]) == 2
    texts = [body["text"] for path, body in state.log if path == "/jetspec/render" and "text" in body]
    assert any("bicycle" in text for text in texts)
    assert "tok_s" in said


def test_a_client_that_fails_is_reported_and_the_other_goes_on(compared):
    document, said, _ = compared("--turns=1", "--copies=1", "--other=false")
    assert [one["client"] for one in document["passes"]] == ["jetspec bench"]
    assert "it has ended" in document["failures"][0]
    assert document["compared"] == []
    assert "it has ended" in said


@pytest.mark.parametrize(("tok_s", "is_within"), [(104.0, True), (112.0, False)])
def test_clients_agree_when_they_differ_less_than_their_passes_do(monkeypatch, tok_s, is_within):
    monkeypatch.syspath_prepend(str(ROOT))
    clients = importlib.import_module("tests.measure.clients")
    speeds = {clients.NAMES[0]: (tok_s, tok_s + 1, tok_s - 1), clients.NAMES[1]: (95.0, 100.0, 105.0)}
    others = dict.fromkeys(("ttft_ms_median", "tpot_ms_median", "tpot_ms_mean"), 1.0)
    passes = [
        {"client": name, "concurrency": 1, "turn": turn, "tok_s": value, **others}
        for name, values in speeds.items()
        for turn, value in enumerate(values)
    ]
    rows = {row["figure"]: row for row in clients.compare(passes)}
    assert rows["tok_s"]["ratio_by_turn"] == [tok_s / 95, (tok_s + 1) / 100, (tok_s - 1) / 105]
    assert rows["tok_s"]["ratio"] == (tok_s + 1) / 100
    assert rows["tok_s"]["is_within_noise"] == is_within
    assert rows["tpot_ms_mean"]["is_within_noise"]
