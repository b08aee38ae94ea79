"""The checks a mutant has to get past: the gate's own run, and what a gate of one prompt at a time cannot see.

A gate run flushes the cache and decodes one prompt after the other, so faults of the prefix cache, of batches, of
stops and of memory need checks of their own. Knows no mutant: it looks at an engine through its client.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jetspec_cli.gating import checks, records
from jetspec_cli.gating.probes import Catch, Probes, record_texts
from jetspec_cli.gating.records import Comparison, Fault, Record
from jetspec_cli.gating.runner import Runner
from jetspec_cli.gating.self_test_client import EngineClient
from jetspec_cli.gating.sides import Sides
from jetspec_cli.gating.spec import ORACLES, GateSpec
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.generation import Generation
from jetspec_engine.errors import BusyError, EngineError

# The float64 reference has to agree with float32 logits to this many nats.
REFERENCE_TOLERANCE = 2e-3
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
        running: an open engine.
        expected: of the healthy engine, in the same dtype.
    """

    def __init__(self, kit: Any, running: Any, expected: Expectation) -> None:
        self.client = EngineClient(running, kit.pieces)
        self._kit, self._expected, self._dtype = kit, expected, running.dtype
        self._prompts = {name: Prompt(prompt_id=name, input_ids=ids) for name, ids in kit.prompts.items()}
        self._solo: dict[str, Generation] = {}
        running.record(expected.texts)
        self._probes = Probes(
            client=self.client, tree=kit.tree, prompts=kit.prompts, texts=expected.texts, spell=self._spell,
            special_ids=kit.special_ids, acceptance=self._acceptance,
        )  # fmt: skip

    def catches(self) -> Iterator[Catch]:
        """Run the checks, the gate's own first, and yield what they catch as they go."""
        probes = self._probes
        phases: Sequence[Callable[[], Iterator[Catch]]] = (
            self._gate, probes.work, self._reference, probes.bits, probes.ends, probes.cache, self._concurrency,
            probes.pages,
        )  # fmt: skip
        for phase in phases:
            try:
                yield from phase()
            except (EngineError, BusyError) as error:
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

    def _acceptance(self, prompt: str, side: str, run: Generation) -> Iterator[Catch]:
        healthy = self._expected.runs.setdefault((prompt, side), run)
        # Other tokens are another check's matter, and have other drafts accepted.
        if healthy.token_ids == run.token_ids and healthy.num_rounds != run.num_rounds:
            detail = f"{side}: {run.num_rounds} rounds, the healthy engine takes {healthy.num_rounds}"
            yield Catch(check="acceptance", prompt=prompt, token=None, detail=detail)

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

    def _concurrency(self) -> Iterator[Catch]:
        yield from self._probes.concurrency(self._solo, self._kit.max_new_tokens, 3)

    def _spell(self, ids: Sequence[int]) -> list[str]:
        return ["" if token in self._kit.special_ids else self._kit.pieces[token] for token in ids]


def record_expected(kit: Any, running: Any) -> Expectation:
    """Decode every prompt plainly past its end, and return the texts as what is expected."""
    # Longer than any run, so that hints reach to the end.
    return Expectation(texts=record_texts(EngineClient(running, kit.pieces), kit.prompts, kit.max_new_tokens + 8))


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
