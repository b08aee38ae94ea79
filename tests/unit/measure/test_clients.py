"""The comparison of two clients: their command lines against stand-ins, their figures, and the verdict."""

import importlib
import json
import random
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
    # The first turn is the server's warm-up.
    assert row[other] == {"median": 100.0, "min": 100.0, "max": 100.0, "passes": 1}
    assert len(row["ratio_by_turn"]) == 1
    assert (row["ratio_interval"], row["verdict"]) == (None, "undecided")
    texts = [body["text"] for path, body in state.log if path == "/jetspec/render" and "text" in body]
    assert any("bicycle" in text for text in texts)
    assert "tok_s" in said


def test_both_clients_ask_in_the_order_that_the_other_shuffles_to(compared, tmp_path):
    compared("--turns=1")
    ours, other = ([json.loads(line) for line in (tmp_path / "w" / f"{name}.jsonl").read_text().splitlines()]
                   for name in ("ours", "other"))  # fmt: skip
    texts = [row["conversations"][0]["content"] for row in other]
    assert [row["prompt"] for row in ours] != texts
    random.Random(42).shuffle(texts)
    assert [row["prompt"] for row in ours] == texts


def test_a_second_run_in_the_same_folder_measures_again(compared):
    for _ in range(2):
        document, _, state = compared("--turns=1", "--copies=1")
        assert document["failures"] == []
        assert state.paths().count("/generate") >= 10


def test_a_client_that_fails_is_reported_and_the_other_goes_on(compared):
    document, said, _ = compared("--turns=1", "--copies=1", "--other=false")
    assert [one["client"] for one in document["passes"]] == ["jetspec bench"]
    assert "it has ended" in document["failures"][0]
    assert document["compared"] == []
    assert "it has ended" in said


@pytest.fixture
def clients(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("tests.measure.clients")


def passes_of(clients, ours, other):
    """Passes with these speeds, one a turn, after a first turn that is of no use."""
    rest = dict.fromkeys(clients.FIGURES, 1.0)
    return [
        {"client": name, "concurrency": 4, "turn": turn, **rest, "tok_s": speed}
        for name, speeds in zip(clients.NAMES, (ours, other), strict=True)
        for turn, speed in enumerate((1.0, *speeds))
    ]


NOISY = (1.0, 0.8, 1.25, 1.1, 0.9, 1.05, 0.95, 1.0, 1.2)


@pytest.mark.parametrize(
    ("ours", "other", "verdict"),
    [
        # What once was called noise since the ranges of the passes overlap.
        ((1479, 2236, 1667), (1939, 2160, 2396), "undecided"),
        ((70, 71, 69, 72, 74, 103, 70), (100, 100, 100, 100, 100, 100, 100), "undecided"),
        ((70, 71, 69, 72, 74, 97, 70), (100, 100, 100, 100, 100, 100, 100), "differ"),
        # A machine that drifts drifts for both.
        (NOISY, NOISY, "agree"),
        (tuple(0.95 * speed for speed in NOISY), NOISY, "agree"),
        (tuple(0.85 * speed for speed in NOISY), NOISY, "differ"),
        (NOISY, NOISY[::-1], "undecided"),
        (NOISY[:5], NOISY[:5], "undecided"),
    ],
)
def test_clients_agree_only_where_the_passes_can_tell(clients, ours, other, verdict):
    rows = {row["figure"]: row for row in clients.compare(passes_of(clients, ours, other))}
    assert rows["tok_s"]["verdict"] == verdict
    ratios = [a / b for a, b in zip(ours, other, strict=True)]
    assert rows["tok_s"]["ratio_by_turn"] == pytest.approx(ratios)
    assert rows["tpot_ms_mean"]["verdict"] == ("agree" if len(ours) > 5 else "undecided")


@pytest.mark.parametrize(
    ("count", "expected"), [(0, None), (5, None), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (20, (5, 14))]
)
def test_the_interval_of_a_median_is_the_sign_tests(clients, count, expected):
    assert clients.median_interval(list(range(count))[::-1]) == expected


def test_our_client_is_held_against_a_server_whose_moments_are_known(tmp_path):
    command = [sys.executable, "-m", "tests.measure.client_truth", "--concurrency=3", "--rounds=2"]
    ran = subprocess.run(
        [*command, f"--out={tmp_path}/o.json"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    (row,) = json.loads((tmp_path / "o.json").read_text())["rows"]
    assert row["requests"] == 6
    # What else the machine does only adds.
    assert min(row["true_ttft_ms"], row["ttft_ms"]) >= 30
    assert min(row["true_e2e_ms"], row["e2e_ms"]) >= 30 + 56 * 4
    assert 1 < row["mean_concurrency"] <= 3
