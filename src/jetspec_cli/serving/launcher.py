"""Starts ``jetspec serve`` as a child process, waits until it is ready, and always stops it.

The child runs in its own session, so that Ctrl-C reaches only us and we stop the child ourselves. It holds the read
end of a pipe as its standard input and stops when that closes, so even a killed parent leaves no server behind.
Knows nothing of what the server is for.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Self

from jetspec_cli import exit_codes
from jetspec_engine.errors import EngineError

SERVE_COMMAND = (sys.executable, "-m", "jetspec_cli", "serve")
QUIET_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 15.0
KEPT_LOG_LINES = 200


class ServerProcess:
    """One child server. Use it in a ``with`` block: entering starts it and waits, leaving stops it.

    Args:
        arguments: what follows ``jetspec serve`` on its command line.
        api_key: given to the child through its environment, where process listings do not show it.
        on_progress: called with one line when the child has something to say while it starts.

    Attributes:
        url: where it listens, once entered.
        info: what it says of itself, once entered.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        api_key: str | None = None,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.url = ""
        self.info: Mapping[str, Any] = {}
        self._command = [
            *(*SERVE_COMMAND, "--port", "0", "--format", "json", "--stop-with-stdin"),
            *arguments,
        ]
        self._environment = {**os.environ, **({"JETSPEC_API_KEY": api_key} if api_key else {})}
        self._on_progress = on_progress
        self._messages: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._log: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._error: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            for stream, read in ((self._process.stdout, self._read_events), (self._process.stderr, self._read_log)):
                self._readers.append(threading.Thread(target=read, args=(stream,), daemon=True))
                self._readers[-1].start()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the child: ask, wait, then kill. Safe to call again."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join(1.0)

    def failure(self, *, wait_s: float = 0.0) -> EngineError | None:
        """Return why the child ended, as one line, or None while it still runs after waiting so long."""
        if self._process is None:
            return None
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        for reader in self._readers:
            reader.join(1.0)
        code = self._process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return EngineError(f"the server {how}{self._last_words()}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while not self.url:
            try:
                message = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                quiet = f"the server said nothing for {QUIET_TIMEOUT_S:.0f} s while starting"
                raise EngineError(quiet + self._last_words()) from None
            if message is None:
                self._raise_start_failure()
                return
            deadline = time.monotonic() + QUIET_TIMEOUT_S
            self._take(message)

    def _take(self, message: Mapping[str, Any]) -> None:
        if "error" in message:
            self._error = message["error"]
        elif message.get("kind") == "ready":
            self.info = message["info"]
            self.url = str(message["url"])
        elif message.get("message"):
            self._on_progress(str(message["message"]))

    def _raise_start_failure(self) -> None:
        assert self._process is not None
        code = self._process.wait()
        if self._error:
            # The child already knows the reason and the hint: a missing extra stays "cannot run here".
            raise exit_codes.error_class(code)(str(self._error.get("what")), hint=str(self._error.get("hint") or ""))
        raise self.failure() or EngineError("the server ended before it was ready")

    def _last_words(self) -> str:
        words = [line for line in self._log if line.strip()]
        return f": {words[-1].strip()}" if words else ""

    def _read_events(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                try:
                    message = json.loads(line)
                except ValueError:
                    self._log.append(line)
                    continue
                if isinstance(message, dict):
                    self._messages.put(message)
        self._messages.put(None)

    def _read_log(self, stream: IO[str]) -> None:
        with stream:
            self._log.extend(stream)
