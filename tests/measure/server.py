"""One ``jetspec serve`` in a process of its own for a measuring script: started, described, stopped with the script.

Knows the command line and the process as Linux counts it; nothing of what is asked of the server.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.measure.common import stamp_script

STOP_TIMEOUT_S = 60.0


@dataclass
class Server:
    """A server that listens.

    Attributes:
        url: where.
        info: what it says of itself.
        pid: its process.
        words: ``jetspec``'s.
        exit_code: None while it runs.
    """

    url: str
    info: dict[str, Any]
    pid: int
    words: Sequence[str]
    exit_code: int | None = field(default=None)

    def stamp(self) -> dict[str, Any]:
        """Return what a result needs to be reproduced."""
        return stamp_script(self.info) | {"server_command": "jetspec " + " ".join(self.words)}


@contextlib.contextmanager
def running_server(*words: str) -> Iterator[Server]:
    """Yield a server of ``jetspec serve`` with these words, on a free port; stopped, with its exit code, on leaving."""
    command = ["serve", "--port", "0", *words, "--format", "json"]
    # It stops when this script is gone, even killed.
    process = subprocess.Popen(
        [sys.executable, "-m", "jetspec_cli", *command, "--stop-with-stdin"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    server = None
    try:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        ready = next((event for event in events if event["kind"] == "ready"), None)
        if ready is None:
            raise RuntimeError("the server did not start")
        server = Server(url=ready["url"], info=ready["info"], pid=process.pid, words=command)
        yield server
    finally:
        process.terminate()
        exit_code = process.wait(STOP_TIMEOUT_S)
        if server is not None:
            server.exit_code = exit_code


def status(pid: int) -> dict[str, int]:
    """Return a process's memory in bytes, and its threads, as Linux counts them."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM", "Threads"):
            found[name] = int(value.split()[0]) * (1024 if value.endswith("kB") else 1)
    return found
