"""One SGLang server hosted from start to stop: its port, its key, the signals that end it, what is said of it.

Knows the child process; nothing of whether SGLang can run here.
"""

import contextlib
import json
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import UnavailableError
from jetspec_engine.records import ServeEvent
from jetspec_engine.sglang_backend.child import SglangServer
from jetspec_engine.sglang_backend.launch import settings_of

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_S = 0.5


def host_server(command: list[str], config: ServeConfig, port: int, on_event: Callable[[ServeEvent], None]) -> None:
    """Run one child server until told to stop.

    Args:
        command: the whole command line, the API key aside.
        config: what it serves.
        port: where it is going to listen.
        on_event: receives log, ready and stopped events; log comes on a thread of its own.

    Raises:
        EngineError: the server failed; one line with its own reason.
        KeyboardInterrupt: told to stop before it was ready.
    """
    url = f"http://{f'[{config.host}]' if ':' in config.host else config.host}:{port}"

    def on_line(line: str) -> None:
        on_event(ServeEvent(kind="log", message=line))

    with (
        stop_signals() as stopped,
        api_key_words(config.api_key) as key_words,
        SglangServer([*command, *key_words], url, api_key=config.api_key, on_line=on_line) as server,
    ):
        if not server.wait_until_healthy(stopped.is_set):
            raise KeyboardInterrupt
        info = server.prove_plugin(settings_of(config))
        on_event(ServeEvent(kind="ready", message=url, info=describe(config, info)))
        while not stopped.wait(WATCH_S):
            server.raise_if_ended()
    on_event(ServeEvent(kind="stopped", message="stopped"))


def describe(config: ServeConfig, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the server says of itself under the names the embedded engine uses."""
    attention = info.get("decode_attention_backend") or info.get("attention_backend")
    return {
        "engine": "sglang",
        "version": info.get("version"),
        "target": config.target,
        "head": config.head,
        "drafter": "head",
        "dtype": info.get("dtype"),
        "device": "cuda",
        "attention": attention,
        "tree": config.tree.to_mapping(),
        "max_tree": {"width": config.max_width, "budget": config.max_budget},
        "page_size": info.get("page_size"),
        "max_seq_len": info.get("context_length"),
        "tp_size": info.get("tp_size"),
    }


def free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0, after checking that it can be had.

    Raises:
        UnavailableError: it is taken, or the host is not ours.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            found: int = probe.getsockname()[1]
            return found
    except OSError as failure:
        raise UnavailableError(
            f"port: cannot listen on {host}:{port}: {failure.strerror or failure}",
            hint="choose another with --port, or --port 0 for any free one",
        ) from failure


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set (in the main thread; elsewhere nobody sets it)."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    previous = {number: signal.signal(number, lambda *_: stopped.set()) for number in STOP_SIGNALS}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def api_key_words(api_key: str | None) -> Iterator[list[str]]:
    """Yield the words that give SGLang its key: a file only we can read, since process listings show a command line."""
    if not api_key:
        yield []
        return
    with tempfile.NamedTemporaryFile("w", prefix="jetspec-", suffix=".yaml", encoding="utf-8") as file:
        # JSON is YAML, and quotes whatever the key holds.
        file.write(json.dumps({"api-key": api_key}))
        file.flush()
        yield ["--config", file.name]
