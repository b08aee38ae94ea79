"""The checks a mutant has to get past: the gate's own run, and what a gate of one prompt at a time cannot see.

A gate run flushes the cache and decodes one prompt after the other, so faults of the prefix cache, of batches, of
stops and of memory need checks of their own. Knows no mutant: it looks at an engine through its client.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jetspec_cli.gating import checks, records
from jetspec_cli.gating.compare import first_difference, first_position
from jetspec_cli.gating.records import Comparison, Fault, Record
from jetspec_cli.gating.runner import Runner
from jetspec_cli.gating.self_test_client import EngineClient
from jetspec_cli.gating.self_test_ends import end_cases, minimum_case
from jetspec_cli.gating.sides import Sides
from jetspec_cli.gating.spec import ORACLES, GateSpec
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.generation import Generation
from jetspec_engine.config import PLAIN
from jetspec_engine.errors import EngineError

# The float64 reference has to agree with float32 logits to this many nats.
REFERENCE_TOLERANCE = 2e-3
# Of the requests that only look at one property; the gate's own go on for longer.
BRIEF = 24
CHECKS = {
    "comparison": "tree against the linear and the greedy oracle: ids, text, finish",
    "teacher_forced": "every token is the target's argmax",
    "accounting": "counters agree with each other and with what was delivered",
    "requests": "no request fails",
    "acceptance": "an unchanged text takes as many rounds as on the healthy engine",
    "work": "no more target forwards than rounds",
    "reference": "logits agree with the float64 reference",
    "bits": "log-probabilities of tree and plain decoding are equal bit by bit",
    "ends": "stops, minimum and cap end a text where plain rules say",
    "cache": "a cached prefix changes neither tokens nor acceptance",
    "concurrency": "requests decoded together give their solo texts",
    "pages": "all pages come back",
}


@dataclass(frozen=True, kw_only=True)
class Catch:
    """A check that failed: at which prompt and at which emitted token, where it can say."""

    check: str
    prompt: str
    token: int | None
    detail: str


@dataclass(kw_only=True)
class Expectation:
    """What the healthy engine gave. Filled by the healthy trial, read by the others.

    Attributes:
        texts: each prompt's ids continued past every end, for the drafter's hints and the end rules.
        runs: each gate run's ids and accept histogram, by (prompt, side).
    """

    texts: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    runs: dict[tuple[str, str], Generation] = field(default_factory=dict)


class Trial:
    """One engine under all checks.

    Args:
        kit: ``registry.self_test()``.
        bench: an open engine.
        expected: of the healthy engine, in the same dtype.
    """

    def __init__(self, kit: Any, bench: Any, expected: Expectation) -> None:
        self.client = EngineClient(bench, kit.pieces)
        self._kit, self._expected, self._dtype = kit, expected, bench.dtype
        self._prompts = {name: Prompt(prompt_id=name, input_ids=ids) for name, ids in kit.prompts.items()}
        self._solo: dict[str, Generation] = {}
        bench.record(expected.texts)

    def catches(self) -> Iterator[Catch]:
        """Run the checks, the gate's own first, and yield what they catch as they go."""
        phases: Sequence[Callable[[], Iterator[Catch]]] = (
            self._gate, self._reference, self._bits, self._ends, self._cache, self._concurrency, self._pages,
        )  # fmt: skip
        for phase in phases:
            try:
                yield from phase()
            except EngineError as error:
                yield Catch(check="requests", prompt="", token=None, detail=error.what)

    # -------------------------------------------------------------------------------------------------- the gate

    def _gate(self) -> Iterator[Catch]:
        """Run the gate itself, as ``jetspec gate --oracle linear,greedy`` does."""
        record = Record()
        spec = GateSpec(prompts=Path("self-test"), trees=(self._kit.tree,), oracles=tuple(ORACLES))
        sides = Sides(
            candidate=self.client, oracle=self.client, process=None, trees=(self._kit.tree,), dtype=self._dtype
        )
        runner = Runner(spec, list(self._prompts.values()), sides, record, lambda _: None)
        for prompt in self._prompts.values():
            seen = (len(record.comparisons), len(record.faults), len(record.runs))
            runner.run_prompt(replace(prompt, max_new_tokens=self._kit.max_new_tokens))
            yield from _caught_by_gate(record.comparisons[seen[0] :], record.faults[seen[1] :])
            for run in record.runs[seen[2] :]:
                if run.generation is not None and run.attempt == 0:
                    if run.role == "candidate":
                        self._solo[run.prompt_id] = run.generation
                    yield from self._acceptance(run.prompt_id, run.label, run.generation)
        yield from self._work()

    def _acceptance(self, prompt: str, side: str, run: Generation) -> Iterator[Catch]:
        healthy = self._expected.runs.setdefault((prompt, side), run)
        # Other tokens are another check's matter, and have other drafts accepted.
        if healthy.token_ids == run.token_ids and healthy.num_rounds != run.num_rounds:
            detail = f"{side}: {run.num_rounds} rounds, the healthy engine takes {healthy.num_rounds}"
            yield Catch(check="acceptance", prompt=prompt, token=None, detail=detail)

    def _work(self) -> Iterator[Catch]:
        for prompt, rounds, forwards in self.client.work:
            chunks = math.ceil(len(self._kit.prompts[prompt]) / self._kit.prefill_chunk)
            # The prompt's last chunk is the first round.
            if forwards > rounds + chunks - 1:
                detail = f"{forwards} forwards for {rounds} rounds and {chunks} prompt chunks"
                yield Catch(check="work", prompt=prompt, token=None, detail=detail)
                return

    # -------------------------------------------------------------------------------------------------- numbers

    def _reference(self) -> Iterator[Catch]:
        if self._dtype != "float32":
            return
        for name, ids in self._kit.prompts.items():
            emitted = self._solo[name].token_ids or () if name in self._solo else ()
            answer = self.client.score([*ids, *emitted], 1, 5)
            rows = self._kit.reference_logits([*ids, *emitted])
            for score in answer[1] if answer else ():
                worst = max(abs(rows[score.position - 1][token] - logit) for token, logit, _ in score.top)
                if not worst <= REFERENCE_TOLERANCE:
                    detail = f"logits {worst:.3g} from the reference"
                    position = max(score.position - len(ids), 0)
                    yield Catch(check="reference", prompt=name, token=position, detail=detail)
                    break

    def _bits(self) -> Iterator[Catch]:
        for name, ids in self._kit.prompts.items():
            sides = []
            for tree in (PLAIN, self._kit.tree):
                answer = self._submit(ids, tree, top_k=3, ignore_eos=True)
                answer.generation()
                sides.append(answer.logprobs)
            for position, (plain, drafted) in enumerate(zip(*sides, strict=False)):
                if plain.token_id != drafted.token_id:
                    break
                if plain != drafted:
                    detail = f"log-probability {plain.logprob!r} plain, {drafted.logprob!r} in a tree"
                    yield Catch(check="bits", prompt=name, token=position, detail=detail)
                    break

    # -------------------------------------------------------------------------------------------------- ends

    def _ends(self) -> Iterator[Catch]:
        for name, ids in self._kit.prompts.items():
            # The engine's own text: whether its tokens are right is another check's matter.
            longest = len(self._expected.texts[ids]) - len(ids)
            endless = self._submit(ids, PLAIN, max_new_tokens=longest, ignore_eos=True).generation().token_ids or ()
            for case in end_cases(endless, self._kit.pieces, self._kit.special_ids):
                run = self._submit(ids, self._kit.tree, ignore_eos=True, **case.options).generation()
                position = first_position(case.ids, run.token_ids or ())
                if position is not None or (case.text is not None and case.text != run.text):
                    what = "text" if position is None else "token"
                    detail = f"another {what} than plain rules give for {dict(case.options)}"
                    yield Catch(check="ends", prompt=name, token=position, detail=detail)
            options, minimum = minimum_case(endless)
            run = self._submit(ids, self._kit.tree, ignore_eos=True, **options).generation()
            emitted = run.token_ids or ()
            if len(emitted) < minimum or set(options["stop_token_ids"]) & set(emitted[:minimum]):
                detail = f"ended after {len(emitted)} tokens, min_new_tokens is {minimum}"
                yield Catch(check="ends", prompt=name, token=len(emitted), detail=detail)

    # -------------------------------------------------------------------------------------------------- company

    def _cache(self) -> Iterator[Catch]:
        for name, ids in self._kit.prompts.items():
            text = self._expected.texts[ids]
            branch = text[: len(ids) + 12]
            other = (text[len(branch)] + 1) % len(self._kit.pieces)
            # The first continues a cached text, which is taken over; the second leaves it, so its beginning is copied.
            for way, longer in (("continued", branch), ("branched", (*branch, other, *ids[:2]))):
                cold = self._submit(longer, self._kit.tree).generation()
                # No hints for these prompts: here the head is on its own.
                yield from self._acceptance(name, f"{way} text", cold)
                self._submit(ids, self._kit.tree).generation()
                warm = self._submit(longer, None).generation()
                yield from _cache_catches(name, len(longer), cold, warm)

    def _concurrency(self) -> Iterator[Catch]:
        self.client.set_tree(self._kit.tree)
        self.client.flush_cache()
        cap = self._kit.max_new_tokens
        names = [name for name in self._kit.prompts if name in self._solo] * 3
        answers = [(name, self.client.submit(self._kit.prompts[name], max_new_tokens=cap)) for name in names]
        for name, answer in answers:
            difference = first_difference(self._solo[name], answer.generation())
            if difference is not None:
                yield Catch(check="concurrency", prompt=name, token=difference.position, detail=difference.detail)

    def _pages(self) -> Iterator[Catch]:
        self.client.flush_cache()
        counters = self.client.counters()
        free, total = counters["pages_free"], counters["pages_total"]
        if free != total:
            detail = f"{free:.0f} pages free on an idle engine, {total:.0f} there are"
            yield Catch(check="pages", prompt="all", token=None, detail=detail)

    def _submit(self, ids: Sequence[int], tree: Any, **options: Any) -> Any:
        """Queue a request on an empty cache under a tree; None leaves tree and cache as they are."""
        if tree is not None:
            self.client.set_tree(tree)
            self.client.flush_cache()
        return self.client.submit(ids, **{"max_new_tokens": BRIEF, **options})


def record_texts(kit: Any, bench: Any) -> Expectation:
    """Decode every prompt plainly past its end, and return the texts as what is expected."""
    client, expected = EngineClient(bench, kit.pieces), Expectation()
    client.set_tree(PLAIN)
    for ids in kit.prompts.values():
        client.flush_cache()
        # Longer than any run, so that hints reach to the end.
        answer = client.submit(ids, max_new_tokens=kit.max_new_tokens + 8, ignore_eos=True)
        expected.texts[ids] = (*ids, *(answer.generation().token_ids or ()))
    return expected


def _caught_by_gate(comparisons: Sequence[Comparison], faults: Sequence[Fault]) -> Iterator[Catch]:
    for comparison in comparisons:
        if comparison.verdict == records.FAILED:
            yield Catch(check="requests", prompt=comparison.prompt_id, token=None, detail=comparison.detail)
        elif comparison.verdict != records.IDENTICAL:
            position = (comparison.mismatch or {}).get("position")
            detail = f"{comparison.oracle}: {comparison.detail}"
            yield Catch(check="comparison", prompt=comparison.prompt_id, token=position, detail=detail)
    for fault in faults:
        check = fault.check if fault.check in (checks.ACCOUNTING, checks.TEACHER_FORCED) else "requests"
        position = fault.report[0]["position"] if fault.report else None
        yield Catch(check=check, prompt=fault.prompt_id, token=position, detail=f"{fault.label}: {fault.detail}")


def _cache_catches(name: str, length: int, cold: Generation, warm: Generation) -> Iterator[Catch]:
    difference = first_difference(cold, warm)
    if difference is not None:
        yield Catch(check="cache", prompt=name, token=difference.position, detail=difference.detail)
    elif not warm.num_cached_tokens:
        yield Catch(check="cache", prompt=name, token=None, detail=f"nothing of {length} tokens was reused")
    elif warm.num_rounds != cold.num_rounds:
        detail = f"{warm.num_rounds} rounds with a cached prefix, {cold.num_rounds} without"
        yield Catch(check="cache", prompt=name, token=None, detail=detail)
