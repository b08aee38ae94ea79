"""Holds a candidate run against an oracle's and says: identical, near-tie, mismatch, unstable oracle, or failed.

An oracle runs again before a mismatch is believed (R54). Knows nothing of grids and progress.
"""

from dataclasses import dataclass, replace
from typing import Any

from jetspec_cli.gating import mismatch, records
from jetspec_cli.gating.compare import Difference, first_difference, unit_of
from jetspec_cli.gating.decoding import Decoder
from jetspec_cli.gating.forensics import Investigator, Suspect
from jetspec_cli.gating.records import Comparison, Run
from jetspec_cli.gating.sides import Sides
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.generation import Generation
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import BusyError, ConfigError, EngineError

# A broken engine mismatches everywhere; the first reports hold the rounds, the rest need not be decoded once more.
MAX_REPLAYS = 20


@dataclass(kw_only=True)
class OracleRuns:
    """One oracle's runs of one prompt. ``runs`` grows when a mismatch makes the oracle run again."""

    name: str
    tree: TreeConfig | None
    runs: list[Run]


class Judge:
    """Compares runs of one dtype.

    Args:
        decoder, sides: of the run.
        investigator: looks into mismatches; None where rounds are enough.
    """

    def __init__(self, decoder: Decoder, sides: Sides, investigator: Investigator | None = None) -> None:
        self._decoder = decoder
        self._sides = sides
        self._investigator = investigator
        self._num_replays = 0

    def compare(self, prompt: Prompt, cell: TreeConfig | None, run: Run, oracle: OracleRuns) -> Comparison:
        """Return the verdict on one candidate run.

        Args:
            prompt: what was decoded.
            cell: the candidate's tree, to switch back to for a replay.
            run: the candidate's.
            oracle: mutated when it has to run again.
        """
        comparison = Comparison(
            dtype=run.dtype,
            prompt_id=run.prompt_id,
            text_class=run.text_class,
            cell=run.label,
            oracle=oracle.name,
            attempt=run.attempt,
            verdict=records.IDENTICAL,
        )
        # A failed extra run, made for an earlier mismatch, proves nothing; the asked-for runs must all be there.
        for one in (*oracle.runs[: self._decoder.repeat], run):
            if one.generation is None:
                detail = f"the {one.role}'s request failed: {one.error}"
                return replace(comparison, verdict=records.FAILED, detail=detail)
        expected, actual = _answer(oracle.runs[0]), _answer(run)
        num_tokens = len(expected.token_ids or ())
        comparison = replace(comparison, compared=unit_of(expected, actual), num_tokens=num_tokens)
        difference = first_difference(expected, actual)
        # Again for the next mismatch, should this run fail: the oracle has to have had its chance to disagree.
        if difference is not None and sum(one.generation is not None for one in oracle.runs) == 1:
            oracle.runs.append(self._decoder.decode(prompt, "oracle", oracle.name, oracle.tree, 1))
        instability = _instability(oracle.runs)
        if instability:
            return replace(comparison, verdict=records.UNSTABLE_ORACLE, detail=instability)
        if difference is None:
            return comparison
        report = self._report(prompt, cell, run, expected, difference)
        if self._investigator is not None:
            first = Suspect(client=self._sides.oracle, run=oracle.runs[0], tree=oracle.tree)
            second = Suspect(client=self._sides.candidate, run=run, tree=cell)
            self._investigator.investigate(prompt, report, oracle.name, oracle=first, candidate=second)
        verdict = records.NEAR_TIE if report["verdict"] == mismatch.NEAR else records.MISMATCH
        return replace(comparison, verdict=verdict, detail=difference.detail, mismatch=report)

    def _report(
        self, prompt: Prompt, cell: TreeConfig | None, run: Run, expected: Generation, difference: Difference
    ) -> dict[str, Any]:
        oracle, candidate = self._sides.oracle, self._sides.candidate
        report: dict[str, Any] = mismatch.bare(difference)
        try:
            mismatch.add_texts(report, oracle, candidate)
            mismatch.classify(report, prompt, expected, oracle, candidate)
            if self._num_replays < MAX_REPLAYS:
                self._num_replays += 1
                self._decoder.prepare(candidate, cell)
                mismatch.locate(report, prompt, _answer(run), self._decoder.cap(prompt), candidate)
        except (EngineError, BusyError, ConfigError) as error:
            report["incomplete"] = error.what
        return report


def _answer(run: Run) -> Generation:
    if run.generation is None:
        raise ValueError(f"{run.prompt_id}: a failed run has no answer")
    return run.generation


def _instability(runs: list[Run]) -> str:
    """Return how an oracle disagrees with itself, or an empty string. A failed repetition proves nothing."""
    answers = [run.generation for run in runs if run.generation is not None]
    for again in answers[1:]:
        difference = first_difference(answers[0], again)
        if difference is not None:
            unit = "token" if difference.unit == "token_ids" else "character"
            return f"the oracle disagrees with itself at {unit} {difference.position}"
    return ""
