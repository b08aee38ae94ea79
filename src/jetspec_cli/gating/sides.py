"""The two servers of a comparison: found by URL or started here, and checked for what the comparison needs.

Often both are one server that is switched between trees. Knows nothing of prompts or verdicts.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jetspec_cli import environment, options
from jetspec_cli.gating.spec import GateSpec
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.launcher import ServerProcess
from jetspec_cli.serving.transport import MAX_TIMEOUT_S, host_of
from jetspec_engine.config import TreeConfig, check_api_key, check_range
from jetspec_engine.errors import BusyError, ConfigError, EngineError


@dataclass(frozen=True, kw_only=True)
class Links:
    """How to reach servers.

    Attributes:
        url: of the server under test; None starts one.
        oracle_url: of the oracle's server; None makes the server under test its own oracle.
        api_key: for both.
        timeout_s: longest wait for one answer.

    Raises:
        ConfigError: a URL is not http(s), the wait is no finite time, or the key cannot be sent.
    """

    url: str | None = None
    oracle_url: str | None = None
    api_key: str | None = None
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        check_link((self.url, self.oracle_url), api_key=self.api_key, timeout_s=self.timeout_s)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both servers, ready.

    Attributes:
        candidate, oracle: one object when it is one server.
        process: the child that serves the candidate, or None for a given URL.
        trees: the cells to run; None among them means the tree the server was started with.
        dtype: of the candidate, as it says.
        target: of the candidate where a run has several, else empty.
    """

    candidate: ServerClient
    oracle: ServerClient
    process: ServerProcess | None
    trees: tuple[TreeConfig | None, ...]
    dtype: str
    target: str = ""

    def label(self, cell: str) -> str:
        """Return what a cell is called in the results."""
        return f"{self.target} {cell}" if self.target else cell

    def as_sent(self, client: ServerClient, prompt: Prompt) -> Prompt:
        """Return a prompt as a server is asked for it: in the other side's token ids where only that one tells them.

        So both decode from the same ids, whatever chat template a foreign server would apply.
        """
        other = self.oracle if client is self.candidate else self.candidate
        if client.kind != "sglang" or prompt.input_ids is not None:
            return prompt
        ids = other.render(prompt)
        return prompt if ids is None else replace(prompt, text=None, messages=None, input_ids=ids)

    def why_gone(self, client: ServerClient) -> str:
        """Return why a server does not answer any more, or an empty string while it does."""
        if client.is_alive():
            return ""
        if client is self.candidate and self.process is not None:
            # Its connections close a moment before the process ends.
            failure = self.process.failure(wait_s=2.0)
            if failure is not None:
                return failure.what
        return f"{client.url} does not answer any more"


@contextmanager
def open_sides(
    spec: GateSpec, target: str, dtype: str, links: Links, on_progress: Callable[[str], None]
) -> Iterator[Sides]:
    """Reach or start the servers for one target and dtype.

    What was started is stopped in the end, and the trees of what was given are restored. An empty target means the
    spec's only one.

    Raises:
        ConfigError: a server cannot do what the spec asks.
        EngineError: a server does not answer, or the child failed.
    """
    with ExitStack() as stack:
        process = None
        if links.url is None:
            process = stack.enter_context(_start(spec, target, dtype, links, on_progress))
        url = links.url or (process.url if process is not None else "")
        candidate = stack.enter_context(_connect(url, links))
        oracle = stack.enter_context(_connect(links.oracle_url, links)) if links.oracle_url else candidate
        trees = _check(spec, dtype, candidate, oracle, is_given=links.url is not None)
        for client in {id(candidate): candidate, id(oracle): oracle}.values():
            if client.can_switch_tree and (process is None or client is not candidate):
                stack.callback(restore, client, client.tree())
        actual = str(candidate.info.get("dtype") or dtype)
        yield Sides(candidate=candidate, oracle=oracle, process=process, trees=trees, dtype=actual, target=target)


def server_record(role: str, client: ServerClient, *, is_started: bool) -> dict[str, Any]:
    """Return what the result document says of a server; where its files lie on its machine is left out."""
    info = {key: value for key, value in client.info.items() if not key.endswith("_path")}
    info |= {key: Path(info[key]).name for key in ("target", "head") if Path(str(info.get(key) or "")).is_absolute()}
    return {"role": role, "kind": client.kind, "url": None if is_started else client.url, "info": info}


def _start(spec: GateSpec, target: str, dtype: str, links: Links, on_progress: Callable[[str], None]) -> ServerProcess:
    own = {"target": target} if target else {}
    settings = {**spec.server, **own, "dtype": dtype, "cache_dir": str(environment.cache_dir())}
    config = options.serve_config(settings, spec.trees or (TreeConfig(),))
    return ServerProcess(options.server_arguments(config), api_key=links.api_key, on_progress=on_progress)


def _connect(url: str, links: Links) -> ServerClient:
    return ServerClient.connect(url, api_key=links.api_key, timeout_s=links.timeout_s)


def _check(
    spec: GateSpec, dtype: str, candidate: ServerClient, oracle: ServerClient, *, is_given: bool
) -> tuple[TreeConfig | None, ...]:
    if is_given and (spec.server or spec.targets or len(spec.dtypes) > 1):
        raise ConfigError(
            "options of a server to be started were given together with --url", hint="leave out one of them"
        )
    runs = candidate.info.get("dtype")
    if dtype != "auto" and runs is not None and runs != dtype:
        raise ConfigError(f"dtypes: {dtype}, the server at {candidate.url} runs {runs}")
    if not oracle.can_switch_tree:
        if oracle is candidate:
            hint = "name a server that decodes without trees: --oracle-url URL"
            raise ConfigError(
                f"{candidate.url}: this server cannot switch trees, so it cannot be its own oracle", hint=hint
            )
        if len(spec.oracles) > 1:
            raise ConfigError(
                f"oracles: {', '.join(spec.oracles)}: {oracle.url} cannot switch trees, so it is only one"
            )
    if not candidate.can_switch_tree:
        if spec.trees:
            raise ConfigError(
                f"{candidate.url}: cannot switch trees", hint="leave out the tree options: it runs as started"
            )
        return (None,)
    trees = spec.trees or ((candidate.tree(),) if is_given else (TreeConfig(),))
    check_room(candidate, trees)
    return trees


def check_link(urls: Iterable[str | None], *, api_key: str | None, timeout_s: float) -> None:
    """Raise ConfigError unless servers can be reached this way: http(s) URLs, a finite wait, a sendable key."""
    check_range("timeout_s", timeout_s, 0.001, MAX_TIMEOUT_S)
    check_api_key(api_key)
    for url in urls:
        if url is not None:
            host_of(url)


def check_room(client: ServerClient, trees: Iterable[TreeConfig]) -> None:
    """Raise ConfigError for a tree that a server was not started for."""
    room = client.info.get("max_tree") or {}
    for tree in trees:
        budget = (tree.budget or 1) if tree.width > 1 else 1
        for name, value in (("width", tree.width), ("budget", budget)):
            if value > room.get(name, value):
                raise ConfigError(f"tree.{name}: {value}, {client.url} was started for at most {room[name]}")


def restore(client: ServerClient, tree: TreeConfig) -> None:
    """Switch a server back; the run's own outcome matters more than one that died, or that others use, meanwhile."""
    with suppress(EngineError, ConfigError, BusyError):
        client.set_tree(tree)
