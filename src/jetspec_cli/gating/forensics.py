"""Investigates a mismatch: both sides decoded again under observation, and the evidence kept for a bug report.

What a server does not offer is left out, and said. Knows servers through their client; nothing of verdicts and files.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jetspec_cli.gating.between import first_differing
from jetspec_cli.gating.decoding import Decoder
from jetspec_cli.gating.mismatch import LOGIC, NEAR
from jetspec_cli.gating.records import Run
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.tensor_file import TensorFile
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import ArtifactError, BusyError, ConfigError, EngineError

# A broken engine mismatches everywhere, and the first cases tell as much as the rest. Whether a near-tie is one hangs
# on the investigation, so more of those are looked into.
MAX_NEAR_TIES, MAX_OTHERS = 20, 3
ROUND_KEYS = ("index", "node", "chosen_at", "depth", "source")
SHORT_KEYS = ("repeats", "dtype", "finding", "num_findings", "num_checked_rows", "incomplete", "reference")

Keep = Callable[..., str]
"""Keeps evidence; called with the fields of ``reporting.bundle.Evidence`` that an investigation knows as keywords
(prompt, oracle_name, runs, report, examined, files) and returns where it is."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """One side of a mismatch: its server, its run, and the tree to switch to (None: leave it)."""

    client: ServerClient
    run: Run
    tree: TreeConfig | None


class Investigator:
    """Investigates the first mismatches of one dtype.

    Args:
        decoder: of the run.
        keep: keeps the evidence.
    """

    def __init__(self, decoder: Decoder, keep: Keep) -> None:
        self._decoder = decoder
        self._keep = keep
        self._num_done: Counter[str] = Counter()

    def investigate(
        self, prompt: Prompt, report: dict[str, Any], oracle_name: str, *, oracle: Suspect, candidate: Suspect
    ) -> None:
        """Add node, findings of both sides and where the evidence is to a mismatch's report, which is mutated.

        A step that is wrong on either side makes a near-tie a matter of logic, however close the logits are.
        """
        verdict = report["verdict"]
        if self._num_done[verdict] >= (MAX_NEAR_TIES if verdict == NEAR else MAX_OTHERS):
            return
        self._num_done[verdict] += 1
        examined: dict[str, dict[str, Any]] = {}
        files: dict[str, bytes] = {}
        suspects = {"oracle": oracle, "candidate": candidate}
        for side, suspect in suspects.items():
            try:
                examined[side], files[side] = self._examine(prompt, suspect, report)
            except (EngineError, BusyError, ConfigError) as error:
                examined[side] = {"incomplete": error.what}
        found: dict[str, Any] = {side: _short(one) for side, one in examined.items()}
        if len(files) == len(suspects):
            parsed = {side: (examined[side], TensorFile.parse(raw)) for side, raw in files.items()}
            found["between_sides"] = first_differing(parsed["oracle"], parsed["candidate"])
        report["forensics"] = found
        if any(one.get("finding") for one in examined.values()):
            report["verdict"] = LOGIC
        _complete_round(report, examined["candidate"])
        try:
            found["folder"] = self._keep(
                prompt=self._row(prompt, candidate.client),
                oracle_name=oracle_name,
                runs={side: suspect.run.to_mapping() for side, suspect in suspects.items()},
                report=report,
                examined=examined,
                files=files,
            )
        except ArtifactError as error:
            # The verdict must not be lost to a full disk.
            found["folder"] = f"not kept: {error.what}"

    def _examine(self, prompt: Prompt, suspect: Suspect, report: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        client, made = suspect.client, suspect.run.generation
        ids = client.render(prompt)
        if ids is None or report["unit"] != "token_ids":
            raise EngineError(f"{client.url}: its internals cannot be seen")
        self._decoder.prepare(client, suspect.tree)
        question = {
            "input_ids": list(ids),
            "max_new_tokens": self._decoder.cap(prompt),
            "position": report["position"],
            "emitted": list(made.token_ids or ()) if made is not None else [],
        }
        raw = client.examine(question)
        if raw is None:
            raise EngineError(f"{client.url}: its internals cannot be seen")
        return TensorFile.parse(raw).report(), raw

    def _row(self, prompt: Prompt, client: ServerClient) -> dict[str, Any]:
        """Return the prompt as a row of a prompts file, in the ids that were decoded where they are known."""
        row: dict[str, Any] = {"id": prompt.prompt_id, "max_new_tokens": self._decoder.cap(prompt)}
        ids = client.render(prompt)
        if ids is not None:
            return {**row, "input_ids": list(ids)}
        if prompt.messages is not None:
            return {**row, "messages": [{"role": role, "content": content} for role, content in prompt.messages]}
        return {**row, "prompt": prompt.text}


def _complete_round(report: dict[str, Any], candidate: Mapping[str, Any]) -> None:
    seen = candidate.get("round")
    if seen is not None and candidate.get("repeats"):
        report["round"] = {**(report.get("round") or {}), **{key: seen[key] for key in ROUND_KEYS}}


def _short(examined: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the result document keeps of an examination; the rest is with the evidence."""
    return {key: examined[key] for key in SHORT_KEYS if key in examined}
