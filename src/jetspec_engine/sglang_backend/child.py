"""One running SGLang server: started, waited for, questioned, stopped.

Runs in a session of its own, so that Ctrl-C reaches only us and its workers can be ended together; stops when we are
killed. Knows its HTTP
surface by three paths; knows nothing of GPUs or of how its command line came about.
"""

import contextlib
import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Self

from jetspec_engine.errors import EngineError
from jetspec_engine.sglang_backend.args import ALGORITHM, TreeSettings
from jetspec_engine.sglang_backend.command_line import SETTINGS_ATTRIBUTE
from jetspec_engine.sglang_backend.launch import is_worth_showing, why_it_ended

QUIET_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.5
REQUEST_TIMEOUT_S = 5.0
KEPT_LINES = 400
PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def end_with_parent() -> None:
    """Have Linux stop this process when the one that started it is gone, even killed."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


class SglangServer:
    """A child server. Use it in a ``with`` block: entering starts it, leaving stops it and its workers.

    Args:
        command: the whole command line.
        url: where it is going to listen.
        api_key: sent with every request.
        on_line: called with each log line that matters, on a thread of its own.
        quiet_timeout_s: longest silence while starting.
    """

    def __init__(
        self,
        command: Sequence[str],
        url: str,
        *,
        api_key: str | None = None,
        on_line: Callable[[str], None] = lambda _: None,
        quiet_timeout_s: float = QUIET_TIMEOUT_S,
    ) -> None:
        self._command, self._url, self._on_line = list(command), url, on_line
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._quiet_timeout_s = quiet_timeout_s
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._last_heard = time.monotonic()
        # Whatever proxies the environment names are not for a server of this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                encoding="utf-8", errors="replace", start_new_session=True,
                # Takes no lock between fork and exec: one call into libc, looked up beforehand.
                preexec_fn=end_with_parent,  # noqa: PLW1509
            )  # fmt: skip
        except OSError as error:
            raise EngineError(f"sglang: cannot be started: {error}") from error
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_healthy(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the server answers ``/health``.

        Args:
            should_stop: asked twice a second.

        Returns:
            False when told to stop before.

        Raises:
            EngineError: it ended, or said nothing for too long; one line with its own reason.
        """
        while not should_stop():
            self.raise_if_ended()
            if self._ask("/health") is not None:
                return True
            if time.monotonic() - self._last_heard > self._quiet_timeout_s:
                last = why_it_ended(self._lines)
                raise EngineError(
                    f"sglang: said nothing for {self._quiet_timeout_s:.0f} s while starting, last: {last}"
                )
            time.sleep(POLL_S)
        return False

    def prove_plugin(self, settings: TreeSettings) -> Mapping[str, Any]:
        """Check that every scheduler of the server runs our algorithm with these settings.

        Returns:
            The server's description of itself.

        Raises:
            EngineError: it runs without our plugin (SGLang only logs a plugin's failure), or with other settings.
        """
        answer = self._ask("/server_info")
        try:
            info = json.loads(answer or b"{}")
            states = list(info.get("internal_states") or [])
        except (ValueError, AttributeError, TypeError) as error:
            raise EngineError("sglang: /server_info: not what sglang answers") from error
        if info.get("speculative_algorithm") != ALGORITHM or not states:
            raise EngineError(
                f"sglang: runs {info.get('speculative_algorithm')!r}, expected {ALGORITHM}: the plugin is not active"
            )
        for state in states:
            if state.get(SETTINGS_ATTRIBUTE) != settings.to_mapping():
                raise EngineError(
                    f"sglang: a scheduler has the tree settings {state.get(SETTINGS_ATTRIBUTE)}, "
                    f"expected {settings.to_mapping()}"
                )
        described: Mapping[str, Any] = info
        return described

    def raise_if_ended(self) -> None:
        """Raise EngineError, one line, when the server has ended."""
        code = self._process.poll()
        if code is None:
            return
        self._reader.join(1.0)
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        raise EngineError(f"sglang: {how}: {why_it_ended(self._lines)}")

    def stop(self) -> None:
        """Ask the server to end, wait, then end what is left of it, its workers included. Safe to call again."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(1.0)

    def _ask(self, path: str) -> bytes | None:
        """Return the body of a 200, else None."""
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=REQUEST_TIMEOUT_S) as response:
                body: bytes = response.read()
                return body
        except (urllib.error.URLError, OSError, http.client.HTTPException):
            return None

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.append(line)
                self._last_heard = time.monotonic()
                if is_worth_showing(line):
                    self._on_line(line.rstrip())
