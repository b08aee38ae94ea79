"""Runs blocks: every arm decodes a block, timed; then its tokens are held against the oracle arm's.

A failed request becomes a row; a server that is gone ends the run, with what is done kept. Knows nothing of files
and of output.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from jetspec_cli.bench.gatekeeper import Gatekeeper
from jetspec_cli.bench.measure import Measured, measure, read
from jetspec_cli.bench.plan import Arm, BenchSpec, Block, Pairing
from jetspec_cli.bench.receiving import Received, receive
from jetspec_cli.bench.rows import Row
from jetspec_cli.bench.server import Bench
from jetspec_cli.prompts import Prompt, warm_up_prompt
from jetspec_engine.errors import BusyError, EngineError, JetspecError

Answers = dict[tuple[str, str], Measured | str]


class Runner:
    """Measures on one server.

    Args:
        spec: resolved.
        prompts: the set; warm-up prompts are none of them (R24).
        bench: the server.

    Attributes:
        notes: what a reader must know, each once.
    """

    def __init__(self, spec: BenchSpec, prompts: Sequence[Prompt], bench: Bench) -> None:
        self.notes: list[str] = []
        self._spec = spec
        self._bench = bench
        # A server prepares for a number of requests when it first sees it.
        self._warm_ups = [warm_up_prompt(prompts, n) for n in range(spec.load.num_at_once(len(prompts)))]
        self._gatekeeper = Gatekeeper(spec, bench)
        self._started = time.perf_counter()

    def warm_up(self, pairing: Pairing) -> dict[str, float]:
        """Decode prompts of no set on every arm, as many at once as are going to be; return each arm's seconds a token.

        Raises:
            JetspecError: one failed.
        """
        seconds = {}
        for arm in pairing.arms:
            self._prepare(arm)
            # The first request pays for what is made once; the second is like those that follow.
            self._warm_up_once(arm)
            done = self._warm_up_once(arm)
            seconds[arm.label] = done.e2e_s / max(1, done.generation.num_emitted_tokens or 1)
            if done.generation.num_emitted_tokens is None:
                self._note("the server counts no tokens, so there are no speeds by token")
        return seconds

    def _warm_up_once(self, arm: Arm) -> Measured:
        client = self._bench.client_of(arm)
        with ThreadPoolExecutor(max_workers=len(self._warm_ups)) as pool:
            first, *_ = list(pool.map(lambda prompt: measure(client, prompt, 32), self._warm_ups))
        return first

    def run(self, block: Block) -> list[Row]:
        """Measure a block on every arm and return its rows.

        Raises:
            EngineError: the server is gone; nothing of this block is kept.
        """
        answers: Answers = {}
        flushed: dict[str, bool] = {}
        for arm in block.arms_in_turn:
            flushed[arm.label] = self._decode(arm, block, answers)
        verdicts = self._gatekeeper.judge(block, answers)
        rows = []
        for arm in block.pairing.arms:
            for prompt in block.prompts:
                row = self._row(block, arm, prompt, answers[arm.label, prompt.prompt_id])
                gate = verdicts.get((arm.label, prompt.prompt_id))
                rows.append({**row, "is_cache_flushed": flushed[arm.label], "gate": gate})
        return rows

    def _decode(self, arm: Arm, block: Block, answers: Answers) -> bool:
        try:
            self._render(arm, block)
            is_flushed = self._prepare(arm)
        except (EngineError, BusyError) as error:
            self._raise_if_gone()
            answers |= {(arm.label, prompt.prompt_id): error.what for prompt in block.prompts}
            return False
        if self._spec.load.is_one_by_one:
            came = [self._receive(arm, block.prompts[0])]
        else:
            came = self._receive_together(arm, block)
        # Read once nothing is being timed any more.
        answers |= {(arm.label, prompt.prompt_id): _read(one) for prompt, one in zip(block.prompts, came, strict=True)}
        if any(isinstance(answers[arm.label, prompt.prompt_id], str) for prompt in block.prompts):
            self._raise_if_gone()
        return is_flushed

    def _render(self, arm: Arm, block: Block) -> None:
        """Have the prompts' token ids told before the load begins: between requests it would thin the load out."""
        for prompt in block.prompts:
            # What fails here fails again, and is told, when the prompt is sent.
            with suppress(JetspecError):
                self._bench.client_of(arm).render(self._bench.as_asked(arm, prompt))

    def _receive_together(self, arm: Arm, block: Block) -> list[Received | str]:
        """Send a block's prompts with the load's concurrency, or at its arrival rate."""
        load = self._spec.load
        # The same arrivals for every arm of a block.
        arrivals = random.Random(f"{load.seed} {block.repeat} {block.index}")
        num_at_once = len(block.prompts) if load.request_rate is not None else load.concurrency
        due = time.perf_counter()
        with ThreadPoolExecutor(max_workers=min(num_at_once, len(block.prompts))) as pool:
            try:
                futures = []
                for prompt in block.prompts:
                    # A worker that is done takes the next one itself.
                    futures.append(pool.submit(self._receive, arm, prompt))
                    if load.request_rate is not None:
                        due += arrivals.expovariate(load.request_rate)
                        time.sleep(max(0.0, due - time.perf_counter()))
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _receive(self, arm: Arm, prompt: Prompt) -> Received | str:
        try:
            return receive(self._bench.client_of(arm), self._bench.as_asked(arm, prompt), self._spec.load.cap(prompt))
        except JetspecError as error:
            return error.what

    def _prepare(self, arm: Arm) -> bool:
        client = self._bench.client_of(arm)
        if arm.tree is not None:
            client.set_tree(arm.tree)
        is_flushed = client.flush_cache()
        if not is_flushed:
            self._note("no cache flush, so the cache state is unknown")
        return is_flushed

    def _raise_if_gone(self) -> None:
        why = self._bench.why_gone()
        if why:
            raise EngineError(why)

    def _row(self, block: Block, arm: Arm, prompt: Prompt, answer: Measured | str) -> Row:
        row: dict[str, Any] = {
            "pairing": block.pairing.label,
            "repeat": block.repeat,
            "block": block.index,
            "prompt_id": prompt.prompt_id,
            "class": prompt.text_class or "unclassed",
            "arm": arm.label,
            "is_ok": not isinstance(answer, str),
            "error": answer if isinstance(answer, str) else "",
        }
        if isinstance(answer, str):
            return row
        return {**row, **answer.to_mapping(), "started_s": answer.started_s - self._started}

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _read(came: Received | str) -> Measured | str:
    if isinstance(came, str):
        return came
    try:
        return read(came)
    except JetspecError as error:
        return error.what
