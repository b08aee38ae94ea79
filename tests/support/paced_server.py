"""Streams events at known moments, in a process of its own, and says when: ``with paced_server(...) as paced:``.

Speaks stock SGLang's native API, without a model: every answer is the same, its events encoded before anybody asks,
so that what a client reports can be held against what was sent. Standard library only.
"""

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

TOKENS = 160


def events(count: int, *, is_cumulative: bool = True) -> list[bytes]:
    """The events of one answer of ``TOKENS`` tokens, as SGLang writes them: all ids so far, or the new ones."""
    ends = [1, *(1 + (TOKENS - 1) * number // (count - 1) for number in range(1, count))]
    found = []
    for number, (before, end) in enumerate(pairwise([0, *ends])):
        begin = 0 if is_cumulative else before
        meta = {
            "id": "0123456789abcdef0123456789abcdef", "prompt_tokens": 51, "weight_version": "default",
            "total_retractions": 0, "completion_tokens": end, "cached_tokens": 0, "cached_tokens_details": None,
            "dp_rank": None, "e2e_latency": 0.25, "spec_verify_ct": number, "spec_accept_length": 2.7,
            "spec_accept_rate": 0.11, "spec_num_proposed_drafts": 15 * number, "spec_num_correct_drafts": end - number,
            "spec_accept_histogram": [number] * 16, "queue_time": 0.001, "prefill_launch_latency": 0.02,
            "finish_reason": {"type": "length", "length": TOKENS} if end == TOKENS else None,
        }  # fmt: skip
        body = {"text": " word" * (end - begin), "output_ids": list(range(1000 + begin, 1000 + end)), "meta_info": meta}
        found.append(f"data: {json.dumps(body)}\n\n".encode())
    return [*found, b"data: [DONE]\n\n"]


class Connection(asyncio.Protocol):
    """One connection: answers its requests one after the other."""

    script: dict[str, Any]
    sent: list[dict[str, Any]]
    num_connections = 0

    def connection_made(self, transport: Any) -> None:
        type(self).num_connections += 1
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self.buffer = rest[length:]
        path = lines[0].split(" ")[1].partition("?")[0]
        if path == "/generate" and json.loads(rest[:length]).get("stream"):
            self.stream()
        else:
            self.reply({"requests": self.sent, "num_connections": self.num_connections} if path == "/sent" else {})

    def reply(self, body: Any) -> None:
        raw = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        self.transport.write(head.encode() + raw)

    def stream(self) -> None:
        now = time.perf_counter()
        log: dict[str, Any] = {"came_s": now, "events_s": []}
        self.sent.append(log)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if not self.script["spacing_s"]:
            for event in self.script["events"]:
                self.write(event)
            log["events_s"] = [now, time.perf_counter()]
            self.transport.write(b"0\r\n\r\n")
        else:
            self.later(0, asyncio.get_running_loop().time() + self.script["prefill_s"], log)

    def write(self, event: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def later(self, number: int, due: float, log: dict[str, Any]) -> None:
        asyncio.get_running_loop().call_at(due, self.send_event, number, due, log)

    def send_event(self, number: int, due: float, log: dict[str, Any]) -> None:
        if self.transport.is_closing():
            return
        self.write(self.script["events"][number])
        if number == len(self.script["events"]) - 1:
            self.transport.write(b"0\r\n\r\n")
            return
        log["events_s"].append(time.perf_counter())
        is_last = number == len(self.script["events"]) - 2
        self.later(number + 1, due if is_last else due + self.script["spacing_s"], log)


async def serve(script: dict[str, Any]) -> None:
    Connection.script, Connection.sent = script, []
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


@dataclass(frozen=True)
class Paced:
    """A running server."""

    url: str

    def sent(self) -> dict[str, Any]:
        """Moments on this machine's ``perf_counter``: each request's coming and its events; and connections made."""
        with urllib.request.urlopen(f"{self.url}/sent") as answer:
            return dict(json.load(answer))


@contextmanager
def paced_server(
    *, num_events: int = 58, spacing_s: float = 0.004, prefill_s: float = 0.03, is_cumulative: bool = True
) -> Iterator[Paced]:
    """Run one; ``spacing_s`` 0 sends everything at once."""
    words = [str(num_events), str(spacing_s), str(prefill_s), str(int(is_cumulative))]
    with subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Paced(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(
        serve({
            "events": events(int(sys.argv[1]), is_cumulative=bool(int(sys.argv[4]))),
            "spacing_s": float(sys.argv[2]),
            "prefill_s": float(sys.argv[3]),
        })
    )  # fmt: skip
