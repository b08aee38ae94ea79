"""One gate run from start to finish, over all targets and dtypes; what is done is kept when it is interrupted or fails.

Knows nothing of output: a watcher is told what happens.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from jetspec_cli import environment
from jetspec_cli.gating import verdict
from jetspec_cli.gating.document import RUNNING, GateDocument
from jetspec_cli.gating.probing import probe
from jetspec_cli.gating.runner import Runner, Step
from jetspec_cli.gating.sides import Links, Sides, open_sides, server_record
from jetspec_cli.gating.spec import GateSpec
from jetspec_cli.prompts import Prompt, warm_up_prompt
from jetspec_engine.errors import EngineError, JetspecError


class Watcher(Protocol):
    """Is told what happens during a run."""

    def on_start(self, message: str) -> None:
        """A server is being started or reached, decodes from now on, or is probed."""
        ...

    def on_progress(self, message: str) -> None:
        """The starting server says something."""
        ...

    def on_step(self, step: Step) -> None:
        """A generation is done."""
        ...

    def on_prompt(self, prompt_id: str, verdicts: Mapping[str, int], document: Mapping[str, Any]) -> None:
        """A prompt is done everywhere: its verdicts, and the document so far."""
        ...

    def on_evidence(self, evidence: Mapping[str, Any], document: Mapping[str, Any]) -> str:
        """A mismatch was investigated: keep the evidence and return where it is. Raises ArtifactError."""
        ...


def execute(
    spec: GateSpec, prompts: Sequence[Prompt], links: Links, command: Sequence[str], watcher: Watcher
) -> dict[str, Any]:
    """Run the gate and return its result document, also when it was interrupted or a server failed.

    Raises:
        ConfigError, UnavailableError, ArtifactError: nothing could be measured as it was asked.
    """
    document = GateDocument(spec, prompts, command, datetime.now(UTC).isoformat(timespec="seconds"))
    url = environment.without_user(links.url) if links.url else None
    try:
        for target, dtype in itertools.product(spec.targets or ("",), spec.dtypes):
            what = f"dtype {dtype}" + (f", target {target}" if target else "")
            watcher.on_start(f"reaching {url}" if url else f"starting a server, {what}")
            with open_sides(spec, target, dtype, links, watcher.on_progress) as sides:
                run_prompts(sides, spec, prompts, document, watcher, url=url)
    except KeyboardInterrupt:
        return document.build(verdict.INTERRUPTED)
    except JetspecError as error:
        # Before anything ran, a wrong flag or a missing device is just that; later, rows must not be lost to it.
        if not isinstance(error, EngineError) and not document.record.runs:
            raise
        return document.build(verdict.ENGINE_FAILED, error=error.what, hint=error.hint)
    return document.build("done")


def run_prompts(
    sides: Sides,
    spec: GateSpec,
    prompts: Sequence[Prompt],
    document: GateDocument,
    watcher: Watcher,
    *,
    url: str | None,
) -> None:
    """Run every prompt on one dtype; everything goes into the document's record."""

    def keep(**evidence: Any) -> str:
        return watcher.on_evidence({**evidence, "url": url}, document.build(RUNNING))

    record = document.record
    record.servers.append(server_record("candidate", sides.candidate, is_started=sides.process is not None))
    if sides.oracle is not sides.candidate:
        record.servers.append(server_record("oracle", sides.oracle, is_started=False))
    runner = Runner(spec, prompts, sides, record, watcher.on_step, keep=keep)
    watcher.on_start(f"decoding, {runner.num_total} generations")
    runner.warm_up(warm_up_prompt(prompts))
    for prompt in prompts:
        num_before = len(record.comparisons)
        runner.run_prompt(prompt)
        verdicts = Counter(comparison.verdict for comparison in record.comparisons[num_before:])
        watcher.on_prompt(prompt.prompt_id, verdicts, document.build(RUNNING))
    watcher.on_start("probing bits, ends, cache, company, work and pages")
    probe(sides, prompts, record)
