"""The gate inside a measurement: the measured answers themselves are held against the oracle arm's.

So what is proven exact is what was timed. The judging is the gate's own. Knows nothing of speeds.
"""

from collections.abc import Mapping
from typing import Any

from jetspec_cli.bench.measure import Measured
from jetspec_cli.bench.plan import Arm, BenchSpec, Block
from jetspec_cli.bench.server import Bench
from jetspec_cli.gating import records
from jetspec_cli.gating.decoding import Decoder
from jetspec_cli.gating.judge import Judge, OracleRuns
from jetspec_cli.gating.records import Record, Run
from jetspec_cli.gating.spec import GateSpec
from jetspec_cli.prompts import Prompt

Verdict = dict[str, Any]


class Gatekeeper:
    """Judges the answers of one server's arms."""

    def __init__(self, spec: BenchSpec, bench: Bench) -> None:
        self._sides = bench.sides()
        gate_spec = GateSpec(prompts=spec.prompts[0], max_new_tokens=spec.load.max_new_tokens)
        self._judge = Judge(Decoder(gate_spec, self._sides, Record()), self._sides)

    def judge(
        self, block: Block, answers: Mapping[tuple[str, str], Measured | str]
    ) -> dict[tuple[str, str], Verdict | None]:
        """Return a verdict (verdict, detail, and the mismatch's report) by arm and prompt.

        The oracle arm has none. Without an oracle arm, counters that contradict themselves are still found.
        """
        oracle = block.pairing.oracle
        verdicts: dict[tuple[str, str], Verdict | None] = {}
        for prompt in block.prompts:
            runs = {arm: self._run(arm, prompt, answers[arm.label, prompt.prompt_id]) for arm in block.pairing.arms}
            oracle_runs = None
            if oracle is not None:
                oracle_runs = OracleRuns(name=oracle.label, tree=oracle.tree, runs=[runs[oracle]])
            for arm, run in runs.items():
                verdict = _accounting(run)
                # Another server is there for its speed; whether its text is right is not this gate's business.
                if verdict is None and oracle_runs is not None and arm != oracle and not arm.is_other:
                    verdict = self._compare(prompt, arm, run, oracle_runs)
                verdicts[arm.label, prompt.prompt_id] = verdict
        return verdicts

    def _compare(self, prompt: Prompt, arm: Arm, run: Run, oracle: OracleRuns) -> Verdict:
        found = self._judge.compare(prompt, arm.tree, run, oracle)
        verdict: Verdict = {"verdict": found.verdict, "detail": found.detail}
        return verdict if found.mismatch is None else {**verdict, "mismatch": found.mismatch}

    def _run(self, arm: Arm, prompt: Prompt, answer: Measured | str) -> Run:
        return Run(
            dtype=self._sides.dtype,
            prompt_id=prompt.prompt_id,
            text_class=prompt.text_class,
            role="candidate",
            label=arm.label,
            tree=None if arm.tree is None else arm.tree.to_mapping(),
            attempt=0,
            is_cache_flushed=False,
            generation=None if isinstance(answer, str) else answer.generation,
            error=answer if isinstance(answer, str) else "",
        )


def _accounting(run: Run) -> Verdict | None:
    fault = run.generation.accounting_fault() if run.generation is not None else ""
    return {"verdict": records.MISMATCH, "detail": fault} if fault else None
