"""The embedded engine: requests in, events out, one thread that decodes.

All work on models and caches happens on the engine's thread; other threads hand it requests and small jobs. Knows
nothing of HTTP, of where models come from, or how a round works.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.embedded.counters import Counters, check_identities
from jetspec_engine.embedded.intake import activate
from jetspec_engine.embedded.jobs import Answer, JobQueue
from jetspec_engine.embedded.prefix_cache import PrefixCache, RegionPool
from jetspec_engine.embedded.profiling import profile_rounds
from jetspec_engine.embedded.recording import record
from jetspec_engine.embedded.request import ActiveRequest, check_ids
from jetspec_engine.embedded.round import Parts, prefill, run_round
from jetspec_engine.embedded.scheduler import Scheduler
from jetspec_engine.embedded.score import check_positions, score_tokens
from jetspec_engine.errors import BusyError, ConfigError, EngineError, RequestError
from jetspec_engine.protocol import Drafter, TargetModel, Tokenizer, TreeBuilder
from jetspec_engine.records import FinishReason, GenerateRequest, PositionScore, Recording, StepEvent

logger = logging.getLogger(__name__)


class EmbeddedEngine:
    """``protocol.CompletionEngine`` over a target, a drafter and a pool of cache pages.

    Args:
        target: the model whose output is decoded.
        drafter: proposes drafts.
        tokenizer: the target's.
        pool: lends regions of the target's slots; it must hold one request of ``max_seq_len`` and the largest tree.
        builders: a tree builder for each rule.
        config: tree, limits and page size; ``max_seq_len`` None takes the target's.
        prefill_chunk: most prompt tokens a forward.
        max_cached_pages: most pages that finished prefixes may hold; None for no limit but the pool's.
        facts: what ``info`` says beside what the engine knows itself.

    Attributes:
        max_seq_len: context length served.
    """

    def __init__(
        self,
        *,
        target: TargetModel,
        drafter: Drafter,
        tokenizer: Tokenizer,
        pool: RegionPool,
        builders: Mapping[str, TreeBuilder],
        config: ServeConfig,
        prefill_chunk: int = 128,
        max_cached_pages: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._target = target
        self._drafter = drafter
        self._pool = pool
        self._builders = builders
        self._config = config
        self.max_seq_len = min(config.max_seq_len or target.max_seq_len, target.max_seq_len)
        self._prefill_chunk = prefill_chunk
        self._facts = dict(facts or {})
        self._counters = Counters()
        self._parts = self._parts_for(config.tree)
        self._scheduler = Scheduler(PrefixCache(pool, target, drafter, max_pages=max_cached_pages), config.max_running)
        self._wake = threading.Condition()
        self._active: dict[str, ActiveRequest] = {}
        self._jobs = JobQueue(self._wake)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="jetspec-engine", daemon=True)
        self._jobs.serve_on(self._thread)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ from any thread

    def submit(self, request: GenerateRequest, on_event: Callable[[StepEvent], None]) -> None:
        """Queue a request; see ``protocol.CompletionEngine``. A callback that raises aborts its request."""
        active = self._activate(request, on_event)
        with self._wake:
            if self._is_closing:
                raise EngineError("engine: closed")
            if request.request_id in self._active:
                raise RequestError(f"request_id: {request.request_id!r} is running already, expected a new one")
            limit = self._config.max_running + self._config.max_queued
            if len(self._active) >= limit:
                raise BusyError(f"queue: {limit} requests running and waiting, no room for more", hint="retry later")
            self._active[request.request_id] = active
            self._scheduler.waiting.append(active)
            self._wake.notify()

    def abort(self, request_id: str) -> bool:
        """Stop a request, or all of them for the empty id; False if there is none."""
        with self._wake:
            chosen = [r for r in self._active.values() if request_id in ("", r.request_id)]
            for request in chosen:
                request.is_aborted = True
            self._wake.notify()
        return bool(chosen)

    def flush_cache(self) -> None:
        """Drop every cached prefix. Raises BusyError while requests run."""
        self.run_idle("flush_cache", lambda _: self._scheduler.cache.flush())

    def set_tree(self, tree: TreeConfig) -> TreeConfig:
        """Switch the tree and return it with its budget resolved. Raises BusyError, ConfigError."""
        self._config.check_tree(tree)
        return self.run_idle("set_tree", lambda _: self._switch(tree))

    def score(self, input_ids: Sequence[int], start: int, top_k: int) -> list[PositionScore]:
        """Teacher-force ids in a fresh region and report positions ``start`` on; runs between two rounds.

        Raises:
            RequestError: bad ids, start or top_k.
            BusyError: running requests hold the memory it needs.
            EngineError: logits that are not finite.
        """
        check_ids(input_ids, self._target.vocab_size, self.max_seq_len)
        check_positions(start, top_k, len(input_ids), self._target.vocab_size)
        return self._jobs.ask(lambda: self._score(input_ids, start, top_k))

    def record(self, request: GenerateRequest, width: int) -> Recording:
        """Decode plainly and keep ``width`` candidates a depth at every token; see ``protocol.CompletionEngine``."""
        active, tree = self._activate(request, lambda _: None), TreeConfig(width=width, budget=None)
        cache = self._scheduler.cache
        return self.run_idle("record", lambda _: record(active, self._parts_for(tree), cache, lambda: self._is_closing))

    def profile(self, request: GenerateRequest, num_rounds: int) -> Mapping[str, Any]:
        """Profile a request's rounds with the tree as it is; see ``protocol.CompletionEngine``."""
        active, sizes = self._activate(request, lambda _: None), self._facts.get("round_bytes")
        how: Any = {"num_rounds": num_rounds, "sizes": sizes, "should_stop": lambda: self._is_closing}
        return self.run_idle("profile", lambda _: profile_rounds(active, self._parts, self._scheduler.cache, **how))

    def info(self) -> Mapping[str, Any]:
        """Say what runs; ``notes`` holds what a user should be told once."""
        tree = self._parts.tree
        notes = list(self._facts.get("notes", ()))
        chain = self._drafter.depth + 1
        if tree.width == 1 and tree.budget is not None and tree.budget > chain:
            notes.append(f"tree.budget: {tree.budget} at width 1, ignored above the chain's {chain}")
        return {
            **self._facts,
            "engine": "embedded",
            "tree": {**tree.to_mapping(), "budget": self._parts.budget},
            "max_tree": {"width": self._config.max_width, "budget": self._config.max_budget},
            "draft_depth": self._drafter.depth,
            "prefill_chunk": self._prefill_chunk,
            "page_size": self._config.page_size,
            "max_seq_len": self.max_seq_len,
            "max_running": self._config.max_running,
            "tp_size": 1,
            "notes": notes,
        }

    def run_idle(self, operation: str, job: Callable[[Any], Answer]) -> Answer:
        """Run a small job on the engine's thread with the target; ``operation`` names it. Raises BusyError."""

        def run() -> Answer:
            count = len(self._scheduler.requests())
            if count:
                raise BusyError(f"{operation}: {count} requests are running or waiting, expected an idle engine")
            return job(self._target)

        return self._jobs.ask(run)

    def reset_counters(self) -> None:
        """Start counting from zero, after a warm-up."""
        self._counters.reset()

    def counters(self) -> Mapping[str, float]:
        """Return totals since start and gauges."""
        cached = self._scheduler.cache.num_pages
        return {
            **self._counters.totals(),
            "running": len(self._scheduler.running),
            "waiting": len(self._scheduler.waiting),
            "target_forwards": getattr(self._target, "num_forwards", 0),
            "pages_total": self._pool.num_pages,
            "pages_free": self._pool.num_free_pages,
            "pages_cached": cached,
        }

    def close(self) -> None:
        """Abort everything, stop the thread, free memory. A second call does nothing."""
        with self._wake:
            self._is_closing = True
            self._jobs.close()
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # ------------------------------------------------------------------------------------------ engine's thread

    @torch.inference_mode()
    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._jobs.run_all()
                self._step()
            except Exception as error:
                logger.exception("the engine failed; its requests end with an error")
                self._counters.add("engine_failures")
                for request in self._scheduler.requests():
                    request.fail(error)
            self._deliver()
        self._shut_down()

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not self._is_closing and not self._jobs and self._scheduler.is_idle:
                self._wake.wait()
            return not self._is_closing

    def _step(self) -> None:
        """End what was aborted, admit, prefill one chunk, run one round."""
        for request in self._scheduler.requests():
            if request.is_aborted:
                request.end(FinishReason(kind="abort", message="aborted"))
        self._scheduler.admit(self._parts)
        waiting_for_prefill = self._scheduler.prefilling()
        if waiting_for_prefill is not None:
            prefill(waiting_for_prefill, self._parts)
        decoding = self._scheduler.decoding()
        if decoding:
            run_round(decoding, self._parts)
            self._counters.add("eager_rounds")

    def _deliver(self) -> None:
        """Settle what has ended, then tell everyone: who hears of an end finds the memory returned."""
        finished = self._scheduler.take_finished()
        for request in finished:
            self._close_books(request)
        with self._wake:
            for request in finished:
                self._active.pop(request.request_id, None)
        for request in [*finished, *self._scheduler.running]:
            event = request.take_event()
            if event is not None:
                self._send(request, event)

    def _close_books(self, request: ActiveRequest) -> None:
        assert request.finish is not None
        request.close_stats()
        try:
            check_identities(request.stats)
        except EngineError as error:
            logger.error("request %s: %s", request.request_id, error)
            request.finish = FinishReason(kind="error", message=error.what)
        self._counters.add_request(request.stats, request.finish.kind)

    def _send(self, request: ActiveRequest, event: StepEvent) -> None:
        try:
            request.on_event(event)
        except Exception:
            logger.exception("request %s: its callback failed, so it is aborted", request.request_id)
            request.is_aborted = True

    def _shut_down(self) -> None:
        for request in self._scheduler.requests():
            request.end(FinishReason(kind="abort", message="the engine was closed"))
        self._deliver()
        self._scheduler.cache.flush()
        self._jobs.run_all()

    # ------------------------------------------------------------------------------------------ jobs

    def _switch(self, tree: TreeConfig) -> TreeConfig:
        self._parts = self._parts_for(tree)
        return TreeConfig.from_mapping({**tree.to_mapping(), "budget": self._parts.budget})

    def _score(self, input_ids: Sequence[int], start: int, top_k: int) -> list[PositionScore]:
        region = self._scheduler.cache.allocate(len(input_ids))
        if region is None:
            raise BusyError(f"score: no room for {len(input_ids)} slots while requests run", hint="retry later")
        try:
            return score_tokens(self._target, region, input_ids, start, top_k, chunk=self._prefill_chunk)
        finally:
            self._scheduler.cache.free(region)

    def _activate(self, request: GenerateRequest, on_event: Callable[[StepEvent], None]) -> ActiveRequest:
        return activate(request, on_event, self.tokenizer, self._target.vocab_size, self.max_seq_len)

    def _parts_for(self, tree: TreeConfig) -> Parts:
        self._config.check_tree(tree)
        builder, chunk = self._builders[tree.rule], self._prefill_chunk
        parts = Parts(target=self._target, drafter=self._drafter, builder=builder, tree=tree, prefill_chunk=chunk)
        if parts.budget > max(self._config.max_budget, self._drafter.depth + 1):
            raise ConfigError(f"tree.budget: {parts.budget}, expected at most {self._config.max_budget}")
        return parts
