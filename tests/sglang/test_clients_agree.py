"""``jetspec bench`` and SGLang's ``bench_serving`` on one server whose times are known: both find them."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.mock_server import Handler, Script, round_sizes
from support.stream_server import StreamHandler, stream_server
from support.tiny_models import make_tiny_target

ROOT = Path(__file__).parents[2]
PREFILL_S, ROUND_S, NEW = 0.3, 0.04, 64
ROUNDS = len(round_sizes(NEW)) - 1


def paced(self, prompt_ids, tokens):
    """The mock's rounds, each after a time of its own."""
    for number, chunk in enumerate(Handler.chunks(self, prompt_ids, tokens)):
        self.wfile.flush()
        time.sleep(ROUND_S if number else PREFILL_S)
        yield chunk


@pytest.mark.parametrize("kind", ["sglang", "jetspec"])
def test_both_clients_find_the_times_of_a_server_that_sleeps(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(StreamHandler, "chunks", lambda self, ids, tokens: self.spoil(paced(self, ids, tokens)))
    target, out = make_tiny_target(tmp_path / "target"), tmp_path / "clients.json"
    with stream_server(Script(kind=kind)) as (url, _):
        command = [sys.executable, "-m", "tests.measure.clients", f"--url={url}", f"--tokenizer={target}"]
        command += [f"--out={out}", f"--work={tmp_path}/w", f"--new={NEW}", "--turns=3", "--concurrency=1,4"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr
    document = json.loads(out.read_text())
    assert document["failures"] == []
    assert {one["num_tokens"] for one in document["passes"]} == {10 * NEW}
    rows = {(row["concurrency"], row["figure"]): row for row in document["compared"]}
    truth = {
        "ttft_ms_median": PREFILL_S * 1e3,
        "tpot_ms_median": ROUNDS * ROUND_S * 1e3 / (NEW - 1),
        "tpot_ms_mean": ROUNDS * ROUND_S * 1e3 / (NEW - 1),
    }
    for concurrency in (1, 4):
        for figure, expected in truth.items():
            # The better of the two passes after the first: what else the machine does only adds.
            found = [rows[concurrency, figure][name]["min"] for name in ("jetspec bench", "sglang.bench_serving")]
            assert found == pytest.approx([expected] * 2, rel=0.1), (concurrency, figure)
        speeds = [rows[concurrency, "tok_s"][name]["max"] for name in ("jetspec bench", "sglang.bench_serving")]
        assert speeds[0] == pytest.approx(speeds[1], rel=0.1)
