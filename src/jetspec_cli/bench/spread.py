"""A sweep's cells over a Ray cluster: one server a worker, a pairing at a time, rows coming back block by block.

The driver alone writes, so rows, the document and resuming are those of a run on one server. A cell and the linear path
it is held against are always measured by one worker. Knows nothing of recordings: every cell is measured.
"""

import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from jetspec_cli import environment
from jetspec_cli.bench.document import RUNNING, BenchDocument
from jetspec_cli.bench.plan import BenchSpec, Block, Pairing
from jetspec_cli.bench.rows import Row, RowLog
from jetspec_cli.bench.runner import Runner
from jetspec_cli.bench.server import Link, fit, open_bench
from jetspec_cli.bench.watching import Watcher
from jetspec_cli.prompts import Prompt
from jetspec_engine.errors import EngineError, UnavailableError

CLOSE_TIMEOUT_S = 30.0


def require_ray() -> Any:
    """Return the ray module. Raises UnavailableError when the extra is missing."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UnavailableError("missing package: ray", hint="pip install 'jetspec[ray]'") from error
    return ray


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What a worker says once its server is ready: the plan that server can run, and what runs where."""

    spec: BenchSpec
    notes: list[str]
    servers: list[dict[str, Any]]
    device: str


class Worker:
    """Measures blocks on a server of its own. Runs as a Ray actor, in a process that Ray gave a GPU or cores."""

    def __init__(self, spec: BenchSpec, prompts: Sequence[Prompt], link: Link) -> None:
        self._spec, self._prompts, self._link = spec, prompts, link
        self._stack = ExitStack()
        self._warm: Pairing | None = None

    def open(self) -> Opened:
        """Start the server. Raises JetspecError."""
        bench = self._stack.enter_context(open_bench(self._spec, self._link, lambda _: None))
        spec, notes = fit(self._spec, bench)
        self._runner = Runner(spec, self._prompts, bench)
        stamp = environment.stamp()
        device = ", ".join(stamp["gpus"]) or stamp["processor"]
        return Opened(spec=spec, notes=notes, servers=bench.records, device=device)

    def run(self, block: Block) -> tuple[list[Row], list[str]]:
        """Measure a block, warming its pairing up first; return its rows and all notes so far. Raises JetspecError."""
        if self._warm != block.pairing:
            self._runner.warm_up(block.pairing)
            self._warm = block.pairing
        return self._runner.run(block), self._runner.notes

    def close(self) -> None:
        """Stop the server."""
        self._stack.close()


class Spread:
    """One sweep on a Ray cluster.

    Args:
        document: gets the servers and notes.
        log: gets the rows.
        watcher: is told what happens.

    Raises:
        UnavailableError: ray is not installed.
    """

    def __init__(self, document: BenchDocument, log: RowLog, watcher: Watcher) -> None:
        self._ray = require_ray()
        self._document, self._log, self._watcher = document, log, watcher
        self._queue: deque[deque[Block]] = deque()
        self._held: dict[Any, tuple[Any, Block, deque[Block]]] = {}

    def run(self, spec: BenchSpec, prompts: Sequence[Prompt], link: Link) -> None:
        """Measure every block that is not there yet.

        Raises:
            UnavailableError: no cluster, or no free device in it.
            EngineError: a worker or its server is gone; what came before is kept.
        """
        ray, workers = self._ray, []
        with _cluster(ray):
            kind, most = _worker_kind(spec, ray.available_resources())
            actor = ray.remote(**kind)(Worker)
            try:
                self._watcher.on_start("starting a server on the Ray cluster")
                workers.append(actor.remote(spec, prompts, link))
                first: Opened = self._get(workers[0].open.remote())
                self._document.spec = first.spec
                num_total = self._fill_queue(first.spec.blocks(prompts))
                workers += [actor.remote(spec, prompts, link) for _ in range(min(most, len(self._queue)) - 1)]
                self._describe([first, *(self._get(ref) for ref in [each.open.remote() for each in workers[1:]])])
                self._drain(workers, num_total)
            finally:
                # A worker that does not close in time is ended with the connection to the cluster.
                with suppress(Exception):
                    ray.wait(
                        [each.close.remote() for each in workers], num_returns=len(workers), timeout=CLOSE_TIMEOUT_S
                    )

    def _fill_queue(self, blocks: Iterable[Block]) -> int:
        """Queue the blocks that are not there yet, by pairing; return how many there are in all."""
        groups: dict[str, deque[Block]] = {}
        num_total = 0
        for block in blocks:
            num_total += 1
            if not self._log.has(block):
                groups.setdefault(block.pairing.label, deque()).append(block)
        self._queue = deque(groups.values())
        return num_total

    def _describe(self, opened: Sequence[Opened]) -> None:
        document = self._document
        for one in opened:
            document.servers += [record for record in one.servers if record not in document.servers]
        devices = ", ".join(dict.fromkeys(one.device for one in opened))
        document.notes += opened[0].notes
        document.notes.append(f"spread by Ray over {len(opened)} servers ({devices}): compare speedups, not tok/s")
        if self._log.num_found:
            document.notes.append("resumed: some rows are from an earlier run of the same command")

    def _drain(self, workers: Sequence[Any], num_total: int) -> None:
        """Keep every worker at the next block of its pairing, and give it the next pairing when that is done."""
        num_done = num_total - sum(map(len, self._queue))
        for worker in workers:
            self._hand_out(worker, deque())
        while self._held:
            [ref], _ = self._ray.wait(list(self._held), num_returns=1)
            worker, block, left = self._held.pop(ref)
            rows, notes = self._get(ref)
            self._log.append(rows)
            self._document.notes += [note for note in notes if note not in self._document.notes]
            num_done += 1
            self._watcher.on_block(num_done, num_total, f"{block.pairing.label}: {block.prompts[0].prompt_id}")
            if not left:
                self._watcher.on_document(self._document.build(RUNNING))
            self._hand_out(worker, left)

    def _hand_out(self, worker: Any, left: deque[Block]) -> None:
        blocks = left or (self._queue.popleft() if self._queue else left)
        if blocks:
            block = blocks.popleft()
            self._held[worker.run.remote(block)] = (worker, block, blocks)

    def _get(self, ref: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            raise EngineError(f"ray: a worker is gone: {str(error).splitlines()[0]}") from error


def _worker_kind(spec: BenchSpec, free: Mapping[str, float]) -> tuple[dict[str, float], int]:
    """Return what a worker takes of the cluster, and how many there is room for.

    Raises:
        UnavailableError: for none.
    """
    device = str(spec.server.get("device") or "auto")
    needs_gpu = device.startswith("cuda") or spec.server.get("engine") == "sglang"
    if needs_gpu or (device == "auto" and free.get("GPU", 0) >= 1):
        kind, most = {"num_gpus": 1.0, "num_cpus": 1.0}, int(free.get("GPU", 0))
    else:
        num_cores = float(spec.server.get("num_threads") or 1)
        kind, most = {"num_cpus": num_cores}, int(free.get("CPU", 0) // num_cores)
    if most < 1:
        asked = ", ".join(f"{count:g} {name.removeprefix('num_')}" for name, count in kind.items())
        raise UnavailableError(f"ray: a worker needs {asked}; the cluster has no room for one", hint="ray status")
    return kind, most


@contextmanager
def _cluster(ray: Any) -> Iterator[None]:
    """Connect to the cluster that RAY_ADDRESS or this machine names, else start Ray here for as long as this runs."""
    on_term = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UnavailableError(f"ray: no cluster can be reached or started: {error}", hint="ray status") from error
    try:
        if threading.current_thread() is threading.main_thread():
            # Ray put a handler of its own in its place, which ends the process at once.
            signal.signal(signal.SIGTERM, on_term)
        yield
    finally:
        ray.shutdown()
