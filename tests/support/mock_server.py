"""A scripted server on a loopback port that speaks the native, the OpenAI and our own API, for tests of clients.

Its "model" needs no weights: the right answer to a prompt is a fixed function of the prompt. A ``Script`` says what
goes wrong, when. Standard library only; knows nothing of the engine.
"""

import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LINEAR_TREE = {"rule": "best_first", "width": 1, "budget": None, "beta": 1.0, "g0": 1.0, "keep_spine": False}
ROUND = 3
LOGIT = 20.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One generation: prompt ids, the tree at that moment, how many came before it in all and for this very prompt."""

    prompt_ids: tuple[int, ...]
    tree: Mapping[str, Any]
    number: int
    repeats: int

    @property
    def is_tree(self) -> bool:
        return self.tree["width"] > 1


@dataclass(kw_only=True)
class Script:
    """What the server does; the defaults are a server that does everything right.

    Attributes:
        kind: jetspec, sglang or openai.
        change: (call, right tokens) -> tokens emitted.
        status: (path, call number) -> HTTP status other than 200 to answer with, or 0.
        dies_at: generation at which the server closes the connection and stops.
        error_in_200: generation that gets status 200 and an error.
        gap: logit distance between the right token and any other.
        miscounts: the histogram loses a round.
        has_token_ids, can_flush, can_render_text, can_score: what it offers.
        info: merged into what the server says of itself.
    """

    kind: str = "jetspec"
    change: Callable[[Call, list[int]], list[int]] = lambda call, tokens: tokens
    status: Callable[[str, int], int] = lambda path, number: 0
    dies_at: int | None = None
    error_in_200: int | None = None
    gap: float = 5.0
    logits_dtype: str = "bfloat16"
    miscounts: bool = False
    has_token_ids: bool = True
    can_flush: bool = True
    can_render_text: bool = True
    can_score: bool = True
    info: dict[str, Any] = field(default_factory=dict)


def encode(text: str) -> tuple[int, ...]:
    """The mock's tokenizer: UTF-8 bytes."""
    return tuple(text.encode())


def decode(ids: list[int] | tuple[int, ...]) -> str:
    """The text of emitted tokens."""
    return "".join(f" t{token}" for token in ids)


def right_tokens(prompt_ids: tuple[int, ...], count: int) -> list[int]:
    """The target's own answer: what an exact engine must emit."""
    seed = zlib.crc32(repr(prompt_ids).encode())
    return [1000 + (seed * (index + 7) >> 3) % 5000 for index in range(count)]


@dataclass(kw_only=True)
class State:
    """What has happened so far. Tests read it."""

    script: Script
    tree: dict[str, Any] = field(default_factory=lambda: {**LINEAR_TREE, "width": 4, "budget": 16})
    log: list[tuple[str, Any]] = field(default_factory=list)
    num_calls: int = 0
    seen: dict[Any, int] = field(default_factory=dict)
    answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    is_dead: bool = False

    def paths(self) -> list[str]:
        return [path for path, _ in self.log]


class Handler(BaseHTTPRequestHandler):
    """One connection; the server object carries the state."""

    protocol_version = "HTTP/1.1"
    # Headers and body in one packet: otherwise every answer waits 40 ms for a delayed acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: "MockHttpServer"

    def log_message(self, *_: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self.handle_call(None)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.handle_call(json.loads(raw) if raw else None)

    def handle_call(self, body: Any) -> None:
        state = self.server.state
        if state.is_dead:
            # A process that died answers on no connection, the kept ones included.
            self.close_connection = True
            self.connection.close()
            return
        self.path = self.path.partition("?")[0]
        state.log.append((self.path, body))
        status = state.script.status(self.path, state.num_calls)
        if status:
            self.reply({"error": {"message": f"scripted {status}"}}, status)
            return
        answer = getattr(self, "on_" + self.path.strip("/").replace("/", "_"), None)
        if answer is None or not self.is_offered():
            self.reply({"detail": "Not Found"}, 404)
            return
        result = answer(body)
        if isinstance(result, Iterator):
            self.stream(result)
        elif result is not None:
            self.reply(*result) if isinstance(result, tuple) else self.reply(result)

    def is_offered(self) -> bool:
        script = self.server.state.script
        if self.path.startswith("/jetspec"):
            return script.kind == "jetspec" and (script.can_score or self.path != "/jetspec/score")
        return self.path.startswith("/v1/") or script.kind != "openai"

    def reply(self, body: Any, status: int = 200) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def stream(self, events: Iterator[Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    # ------------------------------------------------------------------------------------------ answers

    def on_health(self, _: Any) -> Any:
        return {}

    def on_get_server_info(self, _: Any) -> Any:
        state = self.server.state
        own = {
            "engine": "mock", "version": "0", "target": "mock-target", "head": "mock-head", "drafter": "head",
            "dtype": "bfloat16", "device": "none", "attention": "none", "tree": state.tree, "draft_depth": 15,
            "max_tree": {"width": 8, "budget": 128}, **state.script.info,
        }  # fmt: skip
        return {"version": "0", **({"jetspec": own} if state.script.kind == "jetspec" else {})}

    def on_flush_cache(self, _: Any) -> Any:
        return {"success": True} if self.server.state.script.can_flush else ({"error": "no"}, 400)

    def on_jetspec_tree(self, body: Any) -> Any:
        if body is not None:
            self.server.state.tree = body
        return self.server.state.tree

    def on_jetspec_render(self, body: Any) -> Any:
        if "messages" in body:
            text = "".join(f"<{message['role']}>{message['content']}" for message in body["messages"])
            return {"text": text, "input_ids": list(encode(text))}
        if not self.server.state.script.can_render_text:
            return {"error": {"message": "messages missing"}}, 400
        return {"text": body["text"], "input_ids": list(encode(body["text"]))}

    def on_jetspec_detokenize(self, body: Any) -> Any:
        return {"text": decode(body["ids"])}

    def on_jetspec_score(self, body: Any) -> Any:
        state, ids, start = self.server.state, tuple(body["input_ids"]), body["start"]
        known = max((p for p in state.answers if ids[: len(p)] == p), key=len)
        positions = []
        for position in range(start, len(ids)):
            right = state.answers[known][position - len(known)]
            rows = [[right, LOGIT, -0.1], [right + 1, LOGIT - state.script.gap, -0.1 - state.script.gap]]
            logit, logprob = (rows[0] if ids[position] == right else rows[1])[1:]
            row = {"position": position, "token_id": ids[position], "logit": logit, "logprob": logprob}
            positions.append({**row, "top": rows[: body["top_k"]]})
        return {"dtype": state.script.logits_dtype, "positions": positions}

    def on_generate(self, body: Any) -> Any:
        prompt_ids = tuple(body["input_ids"]) if "input_ids" in body else encode(body["text"])
        tokens = self.emit(prompt_ids, body["sampling_params"]["max_new_tokens"])
        if tokens is None:
            return None
        state = self.server.state
        if state.script.error_in_200 == state.num_calls - 1:
            return {"error": {"message": "scripted failure in a 200"}}
        if body.get("stream"):
            return self.chunks(prompt_ids, tokens)
        return self.native(prompt_ids, tokens, {"type": "length", "length": len(tokens)})

    def native(self, prompt_ids: tuple[int, ...], tokens: list[int], finish: Any) -> dict[str, Any]:
        script, rounds = self.server.state.script, round_sizes(len(tokens))
        histogram = [rounds.count(size) for size in range(17)]
        if script.miscounts:
            histogram[ROUND] -= 1
        meta = {
            "finish_reason": finish, "prompt_tokens": len(prompt_ids), "completion_tokens": len(tokens),
            "cached_tokens": 0, "spec_verify_ct": len(rounds), "spec_accept_histogram": histogram,
        }  # fmt: skip
        ids = {"output_ids": tokens} if script.has_token_ids else {}
        return {"text": decode(tokens), **ids, "meta_info": meta}

    def chunks(self, prompt_ids: tuple[int, ...], tokens: list[int]) -> Iterator[Any]:
        done = 0
        for size in round_sizes(len(tokens)):
            done += size
            finish = {"type": "length"} if done == len(tokens) else None
            yield self.native(prompt_ids, tokens[:done], finish)

    def on_v1_models(self, _: Any) -> Any:
        return {"data": [{"id": "mock-target"}]}

    def on_v1_completions(self, body: Any) -> Any:
        return self.openai(body, encode(body["prompt"]), lambda text: {"text": text})

    def on_v1_chat_completions(self, body: Any) -> Any:
        text = "".join(f"<{message['role']}>{message['content']}" for message in body["messages"])
        return self.openai(body, encode(text), lambda text: {"message": {"role": "assistant", "content": text}})

    def openai(self, body: Any, prompt_ids: tuple[int, ...], choice: Callable[[str], Any]) -> Any:
        tokens = self.emit(prompt_ids, body["max_tokens"])
        if tokens is None:
            return None
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(tokens)}
        return {"choices": [{**choice(decode(tokens)), "finish_reason": "length"}], "usage": usage}

    def emit(self, prompt_ids: tuple[int, ...], cap: int) -> list[int] | None:
        """The tokens of one generation, as scripted; None when the server died instead."""
        state = self.server.state
        key = (prompt_ids, json.dumps(state.tree))
        call = Call(prompt_ids=prompt_ids, tree=state.tree, number=state.num_calls, repeats=state.seen.get(key, 0))
        state.num_calls += 1
        state.seen[key] = call.repeats + 1
        if state.script.dies_at == call.number:
            state.is_dead = self.close_connection = True
            self.connection.close()
            threading.Thread(target=self.server.stop).start()
            return None
        state.answers[prompt_ids] = right_tokens(prompt_ids, 1024)
        return state.script.change(call, right_tokens(prompt_ids, cap))


def round_sizes(num_tokens: int) -> list[int]:
    """How many tokens each round emits: the prefill's one, then full rounds."""
    rest = max(0, num_tokens - 1)
    return [1] * min(1, num_tokens) + [ROUND] * (rest // ROUND) + ([rest % ROUND] if rest % ROUND else [])


class MockHttpServer(ThreadingHTTPServer):
    """The listening socket and the state behind it."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.state = State(script=script)

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


@contextmanager
def mock_server(script: Script | None = None) -> Iterator[tuple[str, State]]:
    """Run a scripted server; yield its URL and its state."""
    server = MockHttpServer(script or Script())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.state
    finally:
        server.stop()
        thread.join()
