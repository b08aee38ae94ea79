"""A server that answers nonsense: gate and bench say what is wrong with it in one line; none of it is a bug of ours."""

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

TREE = {"rule": "best_first", "width": 4, "budget": 16}
OURS = {
    "engine": "embedded", "dtype": "bfloat16", "tree": TREE, "max_tree": {"width": 8, "budget": 128}, "target": "t",
    "head": "h", "prefill_chunk": 64, "draft_depth": 15, "offers": ["record", "profile"],
}  # fmt: skip
META = {"id": "1", "finish_reason": {"type": "length"}, "prompt_tokens": 1, "completion_tokens": 4, "spec_verify_ct": 2}
# What a server of ours says; now and then something else is said in its place.
SOUND = {
    "/get_server_info": {"jetspec": OURS, "served_model_name": "m"},
    "/flush_cache": {"success": True},
    "/generate": {"text": "abc", "output_ids": [1, 2, 3, 4], "meta_info": META},
    "/jetspec/tree": TREE,
    "/jetspec/render": {"input_ids": [5, 6]},
    "/v1/models": {"data": [{"id": "m"}]},
    "/v1/completions": {"choices": [{"text": "abc", "finish_reason": "length"}], "usage": {"completion_tokens": 4}},
}
WORDS = (
    "jetspec", "tree", "width", "budget", "dtype", "engine", "max_tree", "text", "meta_info", "output_ids", "type",
    "finish_reason", "completion_tokens", "prompt_tokens", "choices", "usage", "data", "id", "error", "message",
    "input_ids", "positions", "top", "logit", "spec_verify_ct", "spec_accept_histogram", "info", "delta", "content",
)  # fmt: skip
SCALARS = (None, True, 0, -1, 3.5, 10**30, "", "jetspec", "stop", "x" * 50, float("nan"))
NO_JSON = (b"", b"{", b"[" * 50_000, b"\xff\xfe", b"9" * 5000, b"data: 5\n\n", b"data: {}\n\ndata: [DONE]\n\n")


def nonsense(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return rng.choice(SCALARS)
    if kind < 0.65:
        return [nonsense(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(WORDS): nonsense(rng, depth + 1) for _ in range(rng.randrange(8))}


@pytest.fixture
def liar(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that answers rightly at times, seeded by the test's parameter."""
    rng = random.Random(request.param)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_sound = self.path in SOUND and rng.random() < 0.85
            body = json.dumps(SOUND[self.path] if is_sound else nonsense(rng)).encode()
            if not is_sound and rng.random() < 0.3:
                body = rng.choice(NO_JSON)
            self.send_response(200 if is_sound else rng.choice((200, 200, 200, 400, 404, 500, 503)))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("words", [["gate"], ["gate", "--oracle", "linear,greedy"], ["bench", "--repeat", "1"]])
@pytest.mark.parametrize("liar", range(12), indirect=True)
def test_case_28_a_server_that_answers_nonsense(jetspec, prompts, words, liar):
    result = jetspec(*words, "--url", liar, "--prompts", prompts, "--timeout-s", "10")
    assert result.code in (0, 1, 2, 5, 6), result.err
    assert "Traceback" not in result.err
    assert sum(line.startswith("error: ") for line in result.err.splitlines()) <= 1
