"""``jetspec profile`` against a real server in this process, and against servers that do not offer it."""

import json

import pytest

pytest.importorskip("torch")

from jetspec_engine.config import ServeConfig
from jetspec_engine.embedded.assembly import build_engine
from support.live_server import LiveServer
from support.mock_server import Script, mock_server
from support.tiny_pairs import make_tiny_pair


@pytest.fixture
def server(tmp_path):
    config = ServeConfig(**make_tiny_pair(tmp_path / "pair"), device="cpu")
    with LiveServer(build_engine(config, lambda progress: None)) as live:
        yield live


def test_R06_a_table_a_document_and_a_trace_for_perfetto(jetspec, server, tmp_path):
    words = ("profile", "--url", server.url, "--rounds", "3", "--tree-width", "4", "--budget", "12", "--context", "20")
    result = jetspec(*words, "--out", tmp_path / "p.json", "--trace", tmp_path / "t.json")
    assert result.code == 0, result.err
    assert result.out.splitlines()[0].startswith("W4 B12: ")
    assert all(f"\n{phase} " in result.out for phase in ("draft", "build", "verify", "accept", "commit"))
    assert "memory floor" in result.out
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["kind"] == "profile"
    assert document["num_prompt_tokens"] == 20
    assert document["tree"]["budget"] == 12
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    # The tree that ran before runs again, and results folders with a profile in them still render.
    assert server.engine.info()["tree"]["width"] == 8
    assert jetspec("matrix", tmp_path).code == 4


@pytest.mark.parametrize("words", [("--rounds", "0"), ("--context", "0")])
def test_bad_numbers_are_2(jetspec, server, words):
    assert jetspec("profile", "--url", server.url, *words).code == 2


def test_a_context_beyond_the_servers_is_2_and_names_its_own(jetspec, server):
    room = server.engine.info()["max_seq_len"] - 1
    for asked in (room + 1, 9_999_999):
        result = jetspec("profile", "--url", server.url, "--context", str(asked))
        assert result.code == 2
        assert f"context: {asked}, expected an integer in [1, {room}]" in result.err


def test_a_server_that_does_not_profile_is_2_with_a_way_out(jetspec):
    with mock_server(Script()) as (url, _):
        result = jetspec("profile", "--url", url)
    assert result.code == 2
    assert "start_profile" in result.err
