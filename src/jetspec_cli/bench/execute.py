"""One measurement from start to finish, with whatever is done kept when it is interrupted, killed or fails.

Knows nothing of output: a watcher is told what happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jetspec_cli.bench.document import DONE, ENGINE_FAILED, INTERRUPTED, RUNNING, BenchDocument
from jetspec_cli.bench.plan import BenchSpec
from jetspec_cli.bench.replay.run import is_replayed, predict
from jetspec_cli.bench.rows import RowLog
from jetspec_cli.bench.runner import Runner
from jetspec_cli.bench.server import Bench, Link, fit, open_bench
from jetspec_cli.bench.spread import Spread
from jetspec_cli.bench.watching import Watcher
from jetspec_cli.environment import without_user
from jetspec_cli.prompts import Prompt
from jetspec_engine.errors import EngineError, JetspecError


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to measure.

    Attributes:
        spec, prompts: the plan.
        link: to the server.
        command: the command line, without secrets.
        rows: file of the rows; None keeps them in memory.
        recordings: file of a replayed sweep's recordings; None keeps them in memory.
        is_spread: over a Ray cluster, instead of on one server.
    """

    spec: BenchSpec
    prompts: Sequence[Prompt]
    link: Link
    command: Sequence[str]
    rows: Path | None = None
    recordings: Path | None = None
    is_spread: bool = False


def execute(asked: Asked, watcher: Watcher) -> dict[str, Any]:
    """Measure what is not measured yet and return the document, also when it was interrupted or the server failed.

    Raises:
        ConfigError, UnavailableError, ArtifactError: nothing could be measured as it was asked.
        EngineError: the server could not be started or reached.
    """
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    urls = " ".join(filter(None, (asked.link.url, asked.link.compare_url))) or None
    fingerprint = asked.spec.fingerprint(asked.prompts, urls)
    with RowLog(asked.rows, fingerprint) as log:
        document = BenchDocument(asked.spec, asked.prompts, log, asked.command, started_at)
        try:
            if asked.is_spread:
                Spread(document, log, watcher).run(asked.spec, asked.prompts, asked.link)
            else:
                _run_on_one_server(asked, document, log, watcher, fingerprint)
        except KeyboardInterrupt:
            return document.build(INTERRUPTED)
        except JetspecError as error:
            # Before anything ran, a wrong flag or a missing device is just that; rows must not be lost to it later.
            if not document.servers or (not isinstance(error, EngineError) and not log.num_rows):
                raise
            return document.build(ENGINE_FAILED, error=error.what, hint=error.hint)
        return document.build(DONE)


def _run_on_one_server(asked: Asked, document: BenchDocument, log: RowLog, watcher: Watcher, fingerprint: str) -> None:
    watcher.on_start(f"reaching {without_user(asked.link.url)}" if asked.link.url else "starting a server")
    with open_bench(asked.spec, asked.link, watcher.on_start) as bench:
        document.spec, notes = fit(asked.spec, bench)
        document.notes += notes
        document.servers.extend(bench.records)
        if is_replayed(document.spec, bench.client):
            made = predict(
                document.spec,
                asked.prompts,
                bench.client,
                path=asked.recordings,
                fingerprint=fingerprint,
                report=watcher.on_block,
            )
            document.prediction, document.spec = made, made.live_spec
            document.notes += made.notes
        run_blocks(asked, bench, document, log, watcher)


def run_blocks(asked: Asked, bench: Bench, document: BenchDocument, log: RowLog, watcher: Watcher) -> None:
    """Run every block that is not there yet; rows go to the log, notes to the document."""
    spec = document.spec
    runner = Runner(spec, asked.prompts, bench)
    blocks = list(spec.blocks(asked.prompts))
    if log.num_found:
        document.notes.append("resumed: some rows are from an earlier run of the same command")
    warm = ""
    for number, block in enumerate(blocks, start=1):
        if not log.has(block):
            if warm != block.pairing.label:
                runner.warm_up(block.pairing)
                warm = block.pairing.label
            log.append(runner.run(block))
        watcher.on_block(number, len(blocks), f"{block.pairing.label}: {block.prompts[0].prompt_id}")
        is_last = number == len(blocks) or blocks[number].pairing != block.pairing
        document.notes += [note for note in runner.notes if note not in document.notes]
        if is_last and number < len(blocks):
            watcher.on_document(document.build(RUNNING))
