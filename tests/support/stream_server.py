"""The mock server with what only streamed requests show: OpenAI chunks, and streams that go wrong half-way."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from support.mock_server import Handler, MockHttpServer, Script, State, decode, encode

ERROR_EVENT = "error event"
CUT_OFF = "cut off"


class StreamHandler(Handler):
    """Streams OpenAI answers; ``faults`` maps a generation's number to how its stream ends."""

    faults: ClassVar[dict[int, str]] = {}
    counts_tokens = True

    def openai(self, body: Any, prompt_ids: tuple[int, ...], choice: Callable[[str], Any]) -> Any:
        if not body.get("stream"):
            return super().openai(body, prompt_ids, choice)
        tokens = self.emit(prompt_ids, body["max_tokens"])
        return None if tokens is None else self.spoil(self.openai_chunks(tokens, "messages" in body))

    def on_v1_completions(self, body: Any) -> Any:
        prompt = body["prompt"]
        return self.openai(body, encode(prompt) if isinstance(prompt, str) else tuple(prompt), lambda t: {"text": t})

    def openai_chunks(self, tokens: list[int], is_chat: bool) -> Iterator[Any]:
        for token in tokens:
            piece = decode([token])
            yield {"choices": [{"delta": {"content": piece}} if is_chat else {"text": piece}]}
        yield {"choices": [{"delta": {}, "finish_reason": "length"}]}
        if self.counts_tokens:
            yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(tokens)}}

    def native(self, prompt_ids: tuple[int, ...], tokens: list[int], finish: Any) -> dict[str, Any]:
        """The mock's answer with round times: wider trees are a little slower."""
        answer, width = super().native(prompt_ids, tokens, finish), self.server.state.tree["width"]
        if self.server.state.script.kind == "jetspec":
            seconds = 0.010 + 0.0005 * width
            answer["meta_info"]["round_s"] = {"num": 5, "median": seconds, "min": seconds, "max": seconds}
        return answer

    def chunks(self, prompt_ids: tuple[int, ...], tokens: list[int]) -> Iterator[Any]:
        return self.spoil(super().chunks(prompt_ids, tokens))

    def spoil(self, events: Iterator[Any]) -> Iterator[Any]:
        fault = self.faults.get(self.server.state.num_calls - 1)
        yield next(events)
        if fault == ERROR_EVENT:
            yield {"error": {"message": "scripted error inside a 200 stream"}}
        if fault is None:
            yield from events


@contextmanager
def stream_server(
    script: Script | None = None, faults: dict[int, str] | None = None, *, counts_tokens: bool = True
) -> Iterator[tuple[str, State]]:
    """Run the mock with streaming; yield its URL and state."""
    server = MockHttpServer(script or Script())
    server.RequestHandlerClass = type("Own", (StreamHandler,), {"faults": faults or {}, "counts_tokens": counts_tokens})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.state
    finally:
        server.stop()
        thread.join()
