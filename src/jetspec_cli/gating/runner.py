"""Runs the gate on one dtype: every prompt through the oracles and through every cell. Knows nothing of output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jetspec_cli.gating.decoding import Decoder
from jetspec_cli.gating.forensics import Investigator, Keep
from jetspec_cli.gating.judge import Judge, OracleRuns
from jetspec_cli.gating.records import Record, Run
from jetspec_cli.gating.sides import Sides
from jetspec_cli.gating.spec import ORACLES, GateSpec
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.describe import tree_label
from jetspec_engine.config import TreeConfig

AS_STARTED = "as started"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One generation is done: how many, of how many, and which."""

    num_done: int
    num_total: int
    prompt_id: str
    label: str


class Runner:
    """One dtype's run.

    Args:
        spec, prompts, sides: what to run, and where.
        record: where everything goes; mutated.
        on_step: called after every generation.
        keep: keeps the evidence of mismatches; None investigates none.

    Attributes:
        num_total: generations of the whole run; oracles that run again for a mismatch come on top, not foreseen.
    """

    def __init__(
        self,
        spec: GateSpec,
        prompts: Sequence[Prompt],
        sides: Sides,
        record: Record,
        on_step: Callable[[Step], None],
        *,
        keep: Keep | None = None,
    ) -> None:
        self._spec = spec
        self._sides = sides
        self._record = record
        self._on_step = on_step
        self._decoder = Decoder(spec, sides, record)
        self._judge = Judge(self._decoder, sides, Investigator(self._decoder, keep) if keep is not None else None)
        self._num_done = 0
        self.num_total = len(prompts) * spec.repeat * (len(spec.oracles) + len(sides.trees))

    def warm_up(self, prompt: Prompt) -> None:
        """Send a prompt that is not in the set, and note what the servers cannot do. Raises EngineError."""
        oracle = self._sides.oracle
        for client in {id(c): c for c in (self._sides.candidate, oracle)}.values():
            generation = client.generate(prompt, prompt.max_new_tokens or 1)
            if not client.flush_cache():
                self._record.note(f"{client.url}: no cache flush, so the cache state is unknown")
            if generation.token_ids is None:
                self._record.note(f"{client.url}: no token ids, so texts are compared")
        dtypes = [client.info.get("dtype") for client in (self._sides.candidate, oracle)]
        if all(dtypes) and dtypes[0] != dtypes[1]:
            self._record.note(f"{oracle.url}: runs {dtypes[1]}, the other {dtypes[0]}: tokens may differ by that alone")
        if not oracle.can_switch_tree:
            self._record.note(
                f"{oracle.url}: runs as it was started and is taken for the {self._spec.oracles[0]} oracle"
            )

    def run_prompt(self, prompt: Prompt) -> None:
        """Decode one prompt everywhere and compare; failures are recorded, not raised."""
        oracles = []
        for name in self._spec.oracles:
            tree = ORACLES[name] if self._sides.oracle.can_switch_tree else None
            oracles.append(OracleRuns(name=name, tree=tree, runs=self._decode(prompt, "oracle", name, tree)))
        for cell in self._sides.trees:
            label = self._sides.label(AS_STARTED if cell is None else tree_label(cell))
            for run in self._decode(prompt, "candidate", label, cell):
                for oracle in oracles:
                    self._record.comparisons.append(self._judge.compare(prompt, cell, run, oracle))

    def _decode(self, prompt: Prompt, role: str, label: str, tree: TreeConfig | None) -> list[Run]:
        runs = []
        for attempt in range(self._spec.repeat):
            runs.append(self._decoder.decode(prompt, role, label, tree, attempt))
            self._num_done += 1
            step = Step(num_done=self._num_done, num_total=self.num_total, prompt_id=prompt.prompt_id, label=label)
            self._on_step(step)
        return runs
