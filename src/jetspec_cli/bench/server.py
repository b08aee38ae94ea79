"""The server that is measured: reached by its URL or started here, and checked for what the plan needs.

Knows nothing of prompts and results.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jetspec_cli import environment, options
from jetspec_cli.bench.plan import PLAIN_LABEL, Arm, BenchSpec, Pairing, pair
from jetspec_cli.gating.sides import Sides, check_link, check_room, restore, server_record
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.launcher import ServerProcess
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Link:
    """How to reach the server.

    Attributes:
        url: None starts one.
        api_key: for it.
        timeout_s: longest wait for a part of an answer.
        model: name of the model at an OpenAI-compatible server; None takes the first one it lists.
        compare_url: another server, to compare with; None for none.

    Raises:
        ConfigError: the URL is not http(s), the wait is no finite time, or the key cannot be sent.
    """

    url: str | None = None
    api_key: str | None = None
    timeout_s: float = 600.0
    model: str | None = None
    compare_url: str | None = None

    def __post_init__(self) -> None:
        check_link((self.url, self.compare_url), api_key=self.api_key, timeout_s=self.timeout_s)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A server that is ready.

    Attributes:
        client: speaks to it.
        process: the child that serves, or None for a given URL.
        other: speaks to the server to compare with, or None.
    """

    client: ServerClient
    process: ServerProcess | None
    other: ServerClient | None = None

    @property
    def records(self) -> list[dict[str, Any]]:
        """What the document says of the servers, the measured one last."""
        others = [] if self.other is None else [server_record("compared", self.other, is_started=False)]
        return [*others, server_record("measured", self.client, is_started=self.process is not None)]

    def client_of(self, arm: Arm) -> ServerClient:
        """Return what speaks to an arm's server."""
        return self.other if arm.is_other and self.other is not None else self.client

    def as_asked(self, arm: Arm, prompt: Prompt) -> Prompt:
        """Return a prompt as an arm's server is asked it: another one with a native API and our target gets token ids.

        A chat would go to its OpenAI-compatible route, which counts no rounds and takes another path.
        """
        if not arm.is_other or self.other is None or self.other.kind == "openai":
            return prompt
        targets = {Path(str(one.info.get("target") or id(one))).name for one in (self.client, self.other)}
        ids = self.client.render(prompt) if len(targets) == 1 else None
        return prompt if ids is None else replace(prompt, text=None, messages=None, input_ids=ids)

    def sides(self) -> Sides:
        """Return the server as both sides of a gate's comparison."""
        dtype = str(self.client.info.get("dtype") or "")
        return Sides(candidate=self.client, oracle=self.client, process=self.process, trees=(), dtype=dtype)

    def why_gone(self) -> str:
        """Return why a server does not answer any more, or an empty string while all do."""
        clients = [self.client, *([] if self.other is None else [self.other])]
        return next((why for why in map(self.sides().why_gone, clients) if why), "")


@contextmanager
def open_bench(spec: BenchSpec, link: Link, on_progress: Callable[[str], None]) -> Iterator[Bench]:
    """Reach or start the server; stop what was started and restore the tree of what was given.

    Raises:
        ConfigError: the server cannot do what the plan asks.
        EngineError: the server does not answer, or the child failed.
    """
    with ExitStack() as stack:
        process = None
        if link.url is None:
            settings = {**spec.server, "dtype": spec.dtype, "cache_dir": str(environment.cache_dir())}
            settings.setdefault("max_running", max(options.SERVE.max_running, spec.load.concurrency))
            config = options.serve_config(settings, spec.trees or (TreeConfig(),))
            words = options.server_arguments(config)
            process = stack.enter_context(ServerProcess(words, api_key=link.api_key, on_progress=on_progress))
        url = link.url or (process.url if process is not None else "")
        client = ServerClient.connect(url, api_key=link.api_key, timeout_s=link.timeout_s, model=link.model or "")
        stack.enter_context(client)
        check(spec, client, is_given=process is None)
        if process is None and client.can_switch_tree:
            stack.callback(restore, client, client.tree())
        other = None
        if link.compare_url is not None:
            other = ServerClient.connect(
                link.compare_url, api_key=link.api_key, timeout_s=link.timeout_s, model=link.model or ""
            )
            stack.enter_context(other)
        yield Bench(client=client, process=process, other=other)


def check(spec: BenchSpec, client: ServerClient, *, is_given: bool) -> None:
    """Raise ConfigError when a server cannot run the plan."""
    if is_given and spec.server:
        hint = "leave out one of them"
        raise ConfigError("options of a server to be started were given together with --url", hint=hint)
    runs = client.info.get("dtype")
    if spec.dtype != "auto" and runs is not None and runs != spec.dtype:
        raise ConfigError(f"dtype: {spec.dtype}, the server at {client.url} runs {runs}")
    if spec.trees and not client.can_switch_tree:
        hint = "leave out the tree options and --compare: it is measured as it was started"
        raise ConfigError(f"{client.url}: cannot switch trees", hint=hint)
    check_room(client, spec.trees)


def fit(spec: BenchSpec, bench: Bench) -> tuple[BenchSpec, list[str]]:
    """Return the spec as the server can run it, and what a reader must know of the difference.

    A sweep leaves out plain decoding where the server drafts always; ``bench`` asks for it by name, and is refused.
    """
    kept = [pairing for pairing in spec.pairings if PLAIN_LABEL not in {arm.label for arm in pairing.arms}]
    if spec.kind != "sweep" or bench.client.info.get("can_decode_plainly", True) or not kept:
        return _name_running_tree(spec, bench), []
    return replace(spec, pairings=tuple(kept)), ["this server cannot switch to plain decoding, which is left out"]


def _name_running_tree(spec: BenchSpec, bench: Bench) -> BenchSpec:
    """Return the spec with the tree a given server runs now in the place of "as it was started"."""
    if not bench.client.can_switch_tree:
        return spec
    running = bench.client.tree()

    def named(pairing: Pairing) -> Pairing:
        if all(arm.tree is not None or arm.is_other for arm in pairing.arms):
            return pairing
        has_other = any(arm.is_other for arm in pairing.arms)
        return pair(running, [arm.label for arm in pairing.arms if arm.is_baseline], has_other=has_other)

    return replace(spec, pairings=tuple(named(pairing) for pairing in spec.pairings))
