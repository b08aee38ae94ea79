"""The gate's client against the real HTTP server over a scripted engine: both keep the same contract."""

import pytest

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.records import PositionScore
from support.fake_engine import FakeEngine, tell_story
from support.live_server import LiveServer


class HonestEngine(FakeEngine):
    """Scores tokens as a target would that tells the story: the story's token is the argmax."""

    def score(self, input_ids, start, top_k):
        prompt = max((one.input_ids for one in self.submitted if is_prefix(one.input_ids, input_ids)), key=len)
        right = tell_story(prompt, TreeConfig())
        scores = []
        for position in range(start, len(input_ids)):
            best = right[position - len(prompt)]
            token = input_ids[position]
            logit, logprob = (20.0, -0.1) if token == best else (12.0, -8.1)
            top = ((best, 20.0, -0.1), ((best + 1) % 256, 12.0, -8.1))[:top_k]
            scores.append(PositionScore(position=position, token_id=token, logit=logit, logprob=logprob, top=top))
        return scores


def is_prefix(prompt, ids) -> bool:
    return tuple(ids[: len(prompt)]) == tuple(prompt)


def wrong_at_four(prompt, tree):
    """An answer that differs from the story at token 4, for trees only."""
    tokens = tell_story(prompt, tree)
    if tree.width > 1:
        tokens[4] = (tokens[4] + 1) % 256
    return tokens


@pytest.fixture
def serve():
    """Serve an engine; the server must not have complained when the test is over."""
    servers = []

    def start(engine: FakeEngine) -> LiveServer:
        server = LiveServer(engine)
        servers.append(server)
        return server.__enter__()

    yield start
    for server in servers:
        server.__exit__(None, None, None)
        assert server.logs == []


def test_R02_the_real_server_passes_with_everything_checked(jetspec, prompts, serve):
    server = serve(HonestEngine())
    flags = ["--oracle", "linear,greedy", "--tree-width", "2,8", "--budget", "16,64", "--format", "json"]
    result = jetspec("gate", "--prompts", prompts, "--url", server.url, *flags)
    assert result.code == 0
    document = result.document
    assert document["notes"] == []
    assert document["servers"][0]["kind"] == "jetspec"
    assert {row["compared"] for row in document["comparisons"]} == {"token_ids"}
    assert document["summary"]["comparisons"]["identical"] == 4 * 4 * 2
    assert document["summary"]["checks"]["teacher_forced"]["num_checked"] == 4 * 16
    assert server.engine.num_flushes >= 4 * (2 + 4)


def test_R51_a_fault_behind_the_real_server_is_reported_in_full(jetspec, prompts, serve):
    server = serve(HonestEngine(answer=wrong_at_four))
    result = jetspec("gate", "--prompts", prompts, "--url", server.url, "--format", "json")
    assert result.code == 1
    report = result.document["comparisons"][0]["mismatch"]
    assert (report["position"], report["verdict"], report["gap_nats"]) == (4, "logic", pytest.approx(8.0))
    # This engine emits three tokens a round from the first round on.
    assert (report["round"]["index"], report["round"]["depth"]) == (1, 2)
    assert report["replay"] == "same tokens"
    assert report["oracle"]["text"]


def test_the_tree_is_put_back(jetspec, prompts, serve):
    engine = HonestEngine()
    server = serve(engine)
    before = engine.set_tree(TreeConfig(width=3, budget=24))
    jetspec("gate", "--prompts", prompts, "--url", server.url, "--tree-width", "8")
    assert engine.info()["tree"] == before.to_mapping()
    assert before != LINEAR


def test_case_29_an_engine_that_ends_requests_with_errors(jetspec, prompts, serve):
    server = serve(HonestEngine(fail_at=7))
    result = jetspec("gate", "--prompts", prompts, "--url", server.url, "--format", "json")
    assert result.code == 6
    assert "not finite" in result.document["comparisons"][0]["detail"]


def test_prompts_longer_than_the_context_fail_alone(jetspec, tmp_path, serve):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "long", "prompt": "%s"}\n{"id": "short", "prompt": "x"}\n' % ("y" * 300))
    server = serve(HonestEngine(max_seq_len=256))
    result = jetspec("gate", "--prompts", path, "--url", server.url, "--format", "json")
    verdicts = {row["prompt_id"]: row["verdict"] for row in result.document["comparisons"]}
    assert (result.code, verdicts) == (6, {"long": "failed", "short": "identical"})


def test_a_key_is_sent(jetspec, prompts):
    with LiveServer(HonestEngine(), api_key="k") as server:
        refused = jetspec("gate", "--prompts", prompts, "--url", server.url)
        allowed = jetspec("gate", "--prompts", prompts, "--url", server.url, "--api-key", "k")
    assert (refused.code, allowed.code) == (6, 0)
    assert "pass --api-key" in refused.err
