"""R51: ``/jetspec/examine`` over HTTP: the evidence as a file, clear answers where it cannot be had."""

import json
import struct
from pathlib import Path

import pytest

from support.fake_engine import FakeEngine
from support.live_server import LiveServer
from support.tiny_pairs import assembled_rig, make_tiny_pair

QUESTION = {"input_ids": [5, 9, 3, 8], "max_new_tokens": 12, "position": 6}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    folder: Path = tmp_path_factory.mktemp("pair")
    with assembled_rig({**make_tiny_pair(folder), "dtype": "float32", "num_threads": 1}) as rig:
        live = LiveServer(rig.engine)
        with live, live.client() as made:
            yield made
        assert live.logs == []


def report_of(raw: bytes) -> dict:
    (length,) = struct.unpack_from("<Q", raw)
    return json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["report"])


def test_R51_a_healthy_engine_has_no_finding_over_http(client):
    answer = client.post("/jetspec/examine", json=QUESTION)
    assert answer.status_code == 200, answer.text
    report = report_of(answer.content)
    assert report["finding"] is None
    assert report["incomplete"] == ""
    assert len(report["emitted"]) == 12
    assert report["emitted"][6] in [token for token, _ in report["reference"]["top"]]


def test_R51_what_it_decodes_is_what_the_server_answers(client):
    plain = client.post("/generate", json={"input_ids": [5, 9, 3, 8], "sampling_params": {"max_new_tokens": 12}}).json()
    emitted = plain["output_ids"]
    assert report_of(client.post("/jetspec/examine", json={**QUESTION, "emitted": emitted}).content)["repeats"] is True
    other = [*emitted[:-1], (emitted[-1] + 1) % 30]
    assert report_of(client.post("/jetspec/examine", json={**QUESTION, "emitted": other}).content)["repeats"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"input_ids": []},
        {"input_ids": [10**9]},
        {"position": -1},
        {"max_new_tokens": 0},
        {"more": 1},
        {"position": "6"},
    ],
)
def test_R51_bad_questions_are_400(client, change):
    answer = client.post("/jetspec/examine", json={**QUESTION, **change})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
    assert client.get("/health_generate").status_code == 200


def test_R51_a_position_beyond_the_text_looks_at_its_end(client):
    report = report_of(client.post("/jetspec/examine", json={**QUESTION, "position": 500}).content)
    assert report["finding"] is None
    assert report["round"]["index"] >= 0


def test_R51_an_engine_of_another_kind_cannot_be_examined():
    live = LiveServer(FakeEngine())
    with live, live.client() as client:
        answer = client.post("/jetspec/examine", json=QUESTION)
    assert answer.status_code == 501
    assert "no forensics for a FakeEngine" in answer.json()["error"]["message"]
