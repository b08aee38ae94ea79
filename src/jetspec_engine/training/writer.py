"""The target writes the training text: thousands of conversations at once on a static cache.

Every row lives through the same four phases, one token a step: its prompt is forced, an open user turn is sampled
until the target ends it, the chat template's suffix is forced, and the answer is written, greedily for most rows.
A row that ends (end of turn, longest answer, or a loop) gives its place to the next prompt. On CUDA one captured
graph serves every step; elsewhere the same operations run one by one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from jetspec_engine.records import Progress
from jetspec_engine.training.frozen_target import FrozenTarget, StaticCache
from jetspec_engine.training.kernels.pick_token import pick_token
from jetspec_engine.training.prompts import PromptTable
from jetspec_engine.training.settings import WriteSettings
from jetspec_engine.training.text_filter import is_looping, loop_onset
from jetspec_engine.training.text_pool import TextPool, join

LOOP_KEPT = 24
SHORTEST_ANSWER = 16


@dataclass
class _Rows:
    """The state of every row, tensors that the captured graph reads and writes in place."""

    tokens: Tensor
    current: Tensor
    position: Tensor
    forced: Tensor
    forced_length: Tensor
    user_end: Tensor
    temperature: Tensor
    done: Tensor
    seed: Tensor


@dataclass
class _Counts:
    rows: int = 0
    short: int = 0
    looped: int = 0
    greedy: int = 0
    ended: int = 0
    steps: int = 0
    pools: list[TextPool] = field(default_factory=list)


class Writer:
    """Writes answers to prompts.

    Args:
        suffix: token ids between user turn and answer; the first of them ends the turn.
        end_id: the token that ends a turn, and so an answer.
    """

    def __init__(
        self,
        target: FrozenTarget,
        prompts: PromptTable,
        suffix: list[int],
        end_id: int,
        *,
        settings: WriteSettings,
        seed: int = 1,
    ) -> None:
        self.target, self.prompts, self.settings, self.end_id = target, prompts, settings, end_id
        device, R, F = target.device, settings.num_rows, prompts.tokens.shape[1]
        self.suffix = torch.tensor(suffix, device=device)
        self.length = F + settings.user_max + len(suffix) + settings.answer_max + 1
        self.cache = StaticCache(target.config, R, self.length, device, target.dtype)
        self.random = torch.Generator().manual_seed(seed)
        self.next_prompt = 0

        def zeros(*size: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*size, device=device, dtype=dtype)

        self.rows = _Rows(
            tokens=zeros(R, self.length), current=zeros(R), position=zeros(R), forced=zeros(R, F),
            forced_length=zeros(R) + 1, user_end=zeros(R) - 1, temperature=zeros(R, dtype=torch.float32),
            done=zeros(R, dtype=torch.bool), seed=zeros(1) + seed,
        )  # fmt: skip
        self._graph: Any = None
        self.start(torch.arange(R, device=device))

    def start(self, rows: Tensor) -> None:
        """Give the rows their next prompts, in the table's order, over again when it is used up."""
        r, n, total = self.rows, len(rows), len(self.prompts.lengths)
        chosen = (torch.arange(self.next_prompt, self.next_prompt + n) % total).to(rows.device)
        self.next_prompt += n
        is_greedy = torch.rand(n, generator=self.random) < self.settings.greedy_share
        temperature = torch.where(is_greedy, 0.0, self.settings.answer_temperature)
        r.forced[rows] = self.prompts.tokens[chosen]
        r.forced_length[rows] = self.prompts.lengths[chosen]
        r.user_end[rows] = torch.where(self.prompts.is_open[chosen], -1, self.prompts.lengths[chosen])
        r.temperature[rows] = temperature.to(rows.device)
        r.position[rows] = 0
        r.current[rows] = r.forced[rows, 0]
        r.tokens[rows] = 0
        r.tokens[rows, 0] = r.forced[rows, 0]
        r.done[rows] = False

    def step(self) -> None:
        """Advance every row that is not done by one token. In place, no host sync."""
        r, s, size = self.rows, self.settings, len(self.suffix)
        logits = self.target.decode(r.current, r.position, self.cache)
        nxt = r.position + 1
        is_forced = nxt < r.forced_length
        in_user = ~is_forced & (r.user_end < 0)
        after = nxt - r.user_end
        in_suffix = ~is_forced & ~in_user & (after < size)
        in_answer = ~is_forced & ~in_user & (after >= size)
        heat = torch.where(in_user, s.user_temperature, r.temperature)
        picked = pick_token(logits, heat, s.min_p, r.seed)
        ends_user = in_user & ((picked == self.end_id) | (nxt - r.forced_length >= s.user_max))
        token = torch.where(ends_user, self.suffix[0], picked)
        token = torch.where(in_suffix, self.suffix[after.clamp(0, size - 1)], token)
        forced = r.forced.gather(1, nxt.clamp(max=r.forced.shape[1] - 1)[:, None])[:, 0]
        token = torch.where(is_forced, forced, token)
        is_over = in_answer & ((token == self.end_id) | (after - size + 1 >= s.answer_max))
        is_live = ~r.done
        r.user_end.copy_(torch.where(ends_user & is_live, nxt, r.user_end))
        r.position.copy_(torch.where(is_live, nxt, r.position))
        r.current.copy_(torch.where(is_live, token, r.current))
        r.tokens.scatter_(1, r.position[:, None], r.current[:, None])
        r.done.logical_or_(is_over | (nxt >= self.length - 1))
        r.seed.add_(1)

    def capture(self) -> None:
        """Capture ``step`` as a CUDA graph and start every row afresh."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.step()
        self.start(torch.arange(self.settings.num_rows, device=self.target.device))

    def write(
        self, on_progress: Callable[[Progress], None], *, clock: Callable[[], float] = time.monotonic
    ) -> tuple[TextPool, dict[str, Any]]:
        """Write until the time or the rows are up; return the pool and how it came to be.

        Rows still in an answer at the end are kept as far as they got. The counts are named as in the result.
        """
        s, counts = self.settings, _Counts()
        started = last = clock()
        while clock() - started < s.seconds and counts.rows < s.max_rows:
            for _ in range(s.check_every):
                self.step() if self._graph is None else self._graph.replay()
            counts.steps += s.check_every
            self._collect_ended(counts)
            if clock() - last > 10:
                last = clock()
                label = f"write {counts.rows} conversations"
                on_progress(Progress(label=label, done=int(last - started), total=math.ceil(s.seconds), unit="s"))
        self._collect_unfinished(counts)
        elapsed = clock() - started
        pool = join(counts.pools)
        steps = counts.steps * s.num_rows
        return pool, {
            "seconds": round(elapsed, 2), "decode_steps": counts.steps, "tok_s": round(steps / max(elapsed, 1e-9)),
            "num_rows": counts.rows, "num_kept": len(pool), "num_short": counts.short, "num_looped": counts.looped,
            "ended_rate": counts.ended / max(counts.rows, 1), "greedy_rate": counts.greedy / max(counts.rows, 1),
            "num_answer_tokens": pool.num_answer_tokens(),
        }  # fmt: skip

    def _collect_ended(self, counts: _Counts) -> None:
        r = self.rows
        answer = torch.where(r.user_end < 0, self.length, r.user_end + len(self.suffix))
        r.done.logical_or_(is_looping(r.tokens, answer, r.position))
        ended = r.done.nonzero()[:, 0]
        if len(ended):
            self._collect(ended, counts)
            self.start(ended)

    def _collect_unfinished(self, counts: _Counts) -> None:
        r = self.rows
        written = r.position - r.user_end - len(self.suffix) + 1
        self._collect(((r.user_end >= 0) & (written >= 4 * SHORTEST_ANSWER)).nonzero()[:, 0], counts)

    def _collect(self, rows: Tensor, counts: _Counts) -> None:
        """Keep the rows' text: loops cut shortly after they start, very short answers dropped."""
        r = self.rows
        tokens, lengths = r.tokens[rows], r.position[rows] + 1
        starts = r.user_end[rows] + len(self.suffix)
        is_answered = r.user_end[rows] >= 0
        last = tokens.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        onset = loop_onset(tokens, starts, lengths)
        kept = torch.minimum(lengths, onset + LOOP_KEPT)
        is_kept = is_answered & (kept - starts >= SHORTEST_ANSWER)
        is_greedy = r.temperature[rows] == 0
        facts = torch.stack([is_kept, onset < lengths, is_greedy, last == self.end_id]).sum(1).tolist()
        counts.rows += len(rows)
        counts.short += len(rows) - facts[0]
        counts.looped += facts[1]
        counts.greedy += facts[2]
        counts.ended += facts[3]
        width = torch.arange(self.length, device=tokens.device)
        tokens = torch.where(width < kept[:, None], tokens, 0)[is_kept]
        vectors = (x[is_kept].cpu() for x in (kept, starts, is_greedy))
        counts.pools.append(TextPool(tokens.int(), *vectors))
