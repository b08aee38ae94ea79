"""One profile: a tree on a server, its rounds timed by phase and kernel there, made into a document here.

Knows nothing of files and of output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jetspec_cli import environment
from jetspec_cli.bench.plan import BenchSpec, Pairing, arm_of
from jetspec_cli.bench.server import Bench, Link, open_bench
from jetspec_cli.prompts import Prompt, warm_up_prompt
from jetspec_engine import __version__
from jetspec_engine.config import TreeConfig, check_integer
from jetspec_engine.errors import ConfigError

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ProfileSpec:
    """What to profile.

    Attributes:
        tree: None leaves the server as it was started.
        num_rounds: rounds of each pass.
        context: tokens before the first round; the prompt is repeated or cut to so many. None keeps the prompt.
        prompt: None takes one of our own.
        dtype, server: of a server to be started.
    """

    tree: TreeConfig | None
    num_rounds: int = 20
    context: int | None = None
    prompt: Prompt | None = None
    dtype: str = "auto"
    server: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_integer("rounds", self.num_rounds, 1, 1000)
        if self.context is not None:
            check_integer("context", self.context, 1, 10_000_000)


def profile(spec: ProfileSpec, link: Link, command: Sequence[str], on_progress: Any) -> tuple[dict[str, Any], Any]:
    """Profile and return the document and the trace (Chrome's format, as Perfetto reads it).

    Raises:
        ConfigError: the server does not profile.
        EngineError: it failed.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    arm = arm_of(spec.tree)
    plan = BenchSpec(
        kind="profile",
        prompts=(),
        pairings=(Pairing(label=arm.label, arms=(arm,)),),
        dtype=spec.dtype,
        server=spec.server,
    )
    with open_bench(plan, link, on_progress) as bench:
        ids = _input_ids(spec, bench)
        if spec.tree is not None:
            bench.client.set_tree(spec.tree)
        tree = bench.client.tree()
        on_progress(f"profiling {spec.num_rounds} rounds")
        found = dict(bench.client.profile(ids, spec.num_rounds))
    trace = found.pop("trace")
    document = {
        "schema_version": SCHEMA_VERSION,
        "kind": "profile",
        "tool": {"name": "jetspec", "version": __version__},
        "command": list(command),
        "started_at": started_at,
        "environment": environment.stamp(),
        "servers": bench.records,
        "tree": tree.to_mapping(),
        "num_prompt_tokens": len(ids),
        **found,
    }
    return document, trace


def _input_ids(spec: ProfileSpec, bench: Bench) -> tuple[int, ...]:
    if not bench.client.offers("profile"):
        raise ConfigError(
            f"{bench.client.url}: does not profile rounds",
            hint="the embedded engine does; an SGLang server has POST /start_profile of its own",
        )
    ids = bench.client.render(spec.prompt or warm_up_prompt(())) or ()
    if not ids:
        raise ConfigError("profile: the server does not tell the prompt's token ids")
    served = bench.client.info.get("max_seq_len")
    if spec.context is not None and served:
        check_integer("context", spec.context, 1, int(served) - 1)
    return ids if spec.context is None else (ids * (spec.context // len(ids) + 1))[: spec.context]
