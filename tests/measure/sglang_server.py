"""One SGLang server for measurements over HTTP: started, waited for, timed, switched, profiled, ended.

Several may share a GPU; only one is asked at a time. Tokens in, tokens out: no tokenizer is in the way. Knows SGLang's
paths and log; nothing of what is compared.
"""

import glob
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jetspec_engine.config import TreeConfig
from jetspec_engine.sglang_backend.launch import why_it_ended

LAUNCH = (sys.executable, "-m", "sglang.launch_server")
SGLANG_SERVER = " ".join(LAUNCH)
REQUEST_TIMEOUT_S = 60.0
# The first token and the last are streamed, and none between: the server's own work is what is timed.
STREAM_INTERVAL = 100_000
LINEAR = TreeConfig(width=1)


class ServerFailedError(Exception):
    """A server did not start, or a request to it failed: one line that says why."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One generation.

    Attributes:
        ids: emitted tokens.
        rounds: forwards of the target after the prefill.
        seconds: from the first token to the last.
        num_graph, num_counted: rounds in a CUDA graph, of those that were asked (JETSPEC only).
    """

    ids: tuple[int, ...]
    rounds: int
    seconds: float
    num_graph: int
    num_counted: int

    @property
    def ms_a_round(self) -> float:
        """Milliseconds a round."""
        return self.seconds / max(1, self.rounds) * 1e3

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, the prefill and its token excluded."""
        return (len(self.ids) - 1) / self.seconds if self.seconds else 0.0

    @property
    def accept_length(self) -> float:
        """Tokens a round."""
        return (len(self.ids) - 1) / max(1, self.rounds)


@dataclass(kw_only=True)
class Server:
    """A server to be.

    Args:
        name: for reports and the log's file name.
        words: after ``sglang.launch_server``, port aside.
        port: a free one.
        folder: where its log goes.
        environment: added to this process's.
        launch: the command in front of the words.
    """

    name: str
    words: Sequence[str]
    port: int
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    launch: Sequence[str] = LAUNCH
    error: str | None = None
    seconds_to_start: float | None = None

    def start(self) -> None:
        """Start it, and do not wait."""
        self._log = self.folder / f"log-{self.name}.txt"
        self._began = time.monotonic()
        command = [*self.launch, *self.words, "--host=127.0.0.1", f"--port={self.port}"]
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, **self.environment},
            )  # fmt: skip

    def is_up(self) -> bool:
        """Ask whether it serves; notes an error when it has ended."""
        if self._process.poll() is not None:
            self.error = f"ended with {self._process.returncode}: {self.last_words()}"
            return False
        try:
            self.ask("/health", timeout_s=2.0)
        except ServerFailedError:
            return False
        self.seconds_to_start = self.seconds_to_start or time.monotonic() - self._began
        return True

    def last_words(self) -> str:
        """Return the line of its log that says most about a failure."""
        return why_it_ended(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-400:])[:400]

    def ask(self, path: str, body: Any = None, timeout_s: float = REQUEST_TIMEOUT_S) -> bytes:
        """Return the body of a 200. Raises ServerFailedError."""
        try:
            with self._open(path, body, timeout_s) as answer:
                told: bytes = answer.read()
                return told
        except (OSError, http.client.HTTPException) as error:
            raise ServerFailedError(f"{path}: {error}") from error

    def switch(self, tree: TreeConfig) -> None:
        """Set the tree of the next rounds. Raises ServerFailedError when it will not."""
        for attempt in range(20):
            try:
                self.ask("/jetspec/tree", tree.to_mapping())
                return
            except ServerFailedError as error:
                failure = error
                if "409" not in str(error):
                    break
                time.sleep(0.02 * (attempt + 1))  # the last request is still leaving
        raise ServerFailedError(f"not switched to {tree.to_mapping()}: {failure}; {self.last_words()}")

    def generate(self, ids: Sequence[int], max_new_tokens: int, *, ignores_eos: bool) -> Timed:
        """Generate greedily and time it, prefill excluded. Raises ServerFailedError."""
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": ignores_eos}
        sampling["stream_interval"] = STREAM_INTERVAL
        body = {"input_ids": list(ids), "sampling_params": sampling, "stream": True}
        stamps: list[tuple[float, int]] = []
        last: dict[str, Any] = {}
        try:
            with self._open("/generate", body, REQUEST_TIMEOUT_S) as answer:
                for line in answer:
                    now = time.perf_counter()
                    text = line.decode().removeprefix("data:").strip()
                    if not line.startswith(b"data:") or text == "[DONE]":
                        continue
                    last = json.loads(text)
                    if "meta_info" not in last:
                        raise ServerFailedError(f"/generate: {text[:200]}")
                    stamps.append((now, last["meta_info"]["completion_tokens"]))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ServerFailedError(f"/generate: {error}; {self.last_words()}") from error
        return _timed(stamps, last)

    def profile(self, folder: Path, ids: Sequence[int], max_new_tokens: int, num_rounds: int) -> Path:
        """Trace rounds of one generation; returns the trace's file. Raises ServerFailedError."""
        before = set(glob.glob(f"{folder}/*.trace.json.gz"))
        asked = {"output_dir": str(folder), "num_steps": num_rounds, "activities": ["CPU", "GPU"]}
        self.ask("/start_profile", {**asked, "with_stack": False, "record_shapes": False})
        self.generate(ids, max_new_tokens, ignores_eos=True)
        deadline = time.monotonic() + 30
        size = -1
        while time.monotonic() < deadline:
            found = set(glob.glob(f"{folder}/*.trace.json.gz")) - before
            sizes = [os.path.getsize(path) for path in found]
            if found and sizes[0] == size and size > 0:
                return Path(found.pop())
            size = sizes[0] if found else -1
            time.sleep(0.7)
        raise ServerFailedError(f"no trace came: {self.last_words()}")

    def stop(self) -> None:
        """End it and its workers. Safe to call again."""
        if hasattr(self, "_process"):
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self._process.wait()

    def _open(self, path: str, body: Any, timeout_s: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data)
        request.add_header("Content-Type", "application/json")
        # Whatever proxies the environment names are not for a server of this machine.
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s)


def start_all(servers: Sequence[Server], limit_s: float, say: Any = print) -> list[Server]:
    """Start servers side by side; returns those that are up, an error noted on each other."""
    for server in servers:
        server.start()
        time.sleep(0.5)
    waiting, deadline = list(servers), time.monotonic() + limit_s
    while waiting and time.monotonic() < deadline:
        for server in list(waiting):
            if server.is_up():
                say(f"{server.name}: up after {server.seconds_to_start:.0f} s")
                waiting.remove(server)
            elif server.error is not None:
                say(f"{server.name}: {server.error}")
                waiting.remove(server)
        time.sleep(0.3)
    for server in waiting:
        server.error = f"not up after {limit_s:.0f} s: {server.last_words()}"
        say(f"{server.name}: {server.error}")
        server.stop()
    return [server for server in servers if server.error is None]


def _timed(stamps: Sequence[tuple[float, int]], last: dict[str, Any]) -> Timed:
    if len(stamps) < 2:
        raise ServerFailedError(f"/generate: {len(stamps)} parts came, expected the first token and the last")
    meta, ids = last["meta_info"], tuple(last["output_ids"])
    first_count = stamps[0][1]
    if first_count != 1 or len(ids) != meta["completion_tokens"]:
        raise ServerFailedError(f"/generate: {first_count} tokens came first, expected 1; {len(ids)} ids in all")
    num_graph = meta.get("spec_graph_rounds", 0)
    num_counted = num_graph + meta.get("spec_eager_rounds", 0)
    # Stock SGLang counts its verifies, our counters also the prefill, and plain decoding nothing.
    rounds = num_counted or meta.get("spec_verify_ct") or len(ids) - 1
    return Timed(
        ids=ids, rounds=rounds, seconds=stamps[-1][0] - stamps[0][0], num_graph=num_graph, num_counted=num_counted
    )  # fmt: skip
