"""Runs requests through an engine built of doubles and collects what came of them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.records import FinishReason, GenerateRequest, RequestStats, SamplingParams, StepEvent
from jetspec_engine.tree.rules import BUILDERS
from support.fake_target import FakeDrafter, FakePool, FakeTarget, FakeTokenizer, next_id

WIDE = TreeConfig(width=4, budget=12)
LINEAR_AND_WIDE = (TreeConfig(width=1, budget=None), WIDE)


def said(prompt: Sequence[int], count: int) -> list[int]:
    """Return what the target says after a prompt, one token at a time, EOS or not: the greedy oracle."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_id(ids))
    return ids[len(prompt) :]


@dataclass
class Collected:
    """One request's events, joined."""

    events: list[StepEvent] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __call__(self, event: StepEvent) -> None:
        assert not self.done.is_set(), "an event after the last one"
        self.events.append(event)
        if event.finish is not None:
            self.done.set()

    def wait(self) -> "Collected":
        assert self.done.wait(30), "the request never ended"
        return self

    @property
    def ids(self) -> list[int]:
        return [token for event in self.events for token in event.token_ids]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events)

    @property
    def finish(self) -> FinishReason:
        finish = self.events[-1].finish
        assert finish is not None
        return finish

    @property
    def stats(self) -> RequestStats:
        stats = self.events[-1].stats
        assert stats is not None
        return stats


@dataclass
class Rig:
    """An engine and the doubles inside it."""

    engine: EmbeddedEngine
    target: FakeTarget
    drafter: FakeDrafter
    pool: FakePool
    num_submitted: int = 0

    def submit(
        self, ids: Sequence[int], *, request_id: str = "", top_k: int | None = None, **sampling: Any
    ) -> Collected:
        self.num_submitted += 1
        collected = Collected()
        request = GenerateRequest(
            request_id=request_id or f"r{self.num_submitted}",
            input_ids=tuple(ids),
            sampling=SamplingParams(**sampling),
            logprobs_top_k=top_k,
        )
        self.engine.submit(request, collected)
        return collected

    def run(self, ids: Sequence[int], **options: Any) -> Collected:
        return self.submit(ids, **options).wait()


@contextmanager
def engine_rig(
    mode: str = "mixed",
    *,
    tree: TreeConfig = WIDE,
    depth: int = 5,
    num_slots: int = 4096,
    max_seq_len: int = 256,
    can_cut: bool = True,
    seed: int = 0,
    page_size: int = 16,
    prefill_chunk: int = 7,
    drafter: Any = None,
    **config: Any,
) -> Iterator[Rig]:
    """Build an engine of doubles, and check on the way out that nothing was leaked."""
    target = FakeTarget(num_slots=num_slots, max_seq_len=max_seq_len, can_cut=can_cut)
    fake_drafter = FakeDrafter(mode, depth=depth, num_slots=num_slots, seed=seed)
    pool = FakePool(num_slots, page_size)
    engine = EmbeddedEngine(
        target=target,
        drafter=drafter or fake_drafter,
        tokenizer=FakeTokenizer(),
        pool=pool,
        builders=BUILDERS,
        config=ServeConfig(tree=tree, **config),
        prefill_chunk=prefill_chunk,
    )
    try:
        yield Rig(engine, target, fake_drafter, pool)
    finally:
        engine.close()
    assert pool.num_free_pages == pool.num_pages
    assert not fake_drafter.open_sessions
