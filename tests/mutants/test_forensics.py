"""R51: an investigation names the tensor in which a seeded fault first shows, and finds nothing in a healthy engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from jetspec_cli.gating.between import first_differing
from jetspec_cli.gating.records import MISMATCH, Comparison, Record
from jetspec_cli.gating.runner import Runner
from jetspec_cli.gating.self_test_checks import record_expected
from jetspec_cli.gating.self_test_client import EngineClient
from jetspec_cli.gating.sides import Sides
from jetspec_cli.gating.spec import GateSpec
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.tensor_file import TensorFile
from jetspec_engine import registry
from jetspec_engine.config import PLAIN

# The fault, and the tensor that is the first to be wrong: name, layer where there is one, rounding aside.
FIRST_WRONG: dict[str, tuple[str, int | None]] = {
    "position-by-index": ("positions", None),
    "rope-offset-behind": ("positions", None),
    "sibling-visible": ("mask", 0),
    "causal-by-index": ("mask", 0),
    "parent-hidden": ("mask", 0),
    "window-by-index": ("mask", 1),
    "padded-row-leaks": ("q", 0),
    "sums-in-float16": ("attention", 0),
    "bonus-off-by-one": ("choice", None),
    "walk-takes-next-sibling": ("choice", None),
    "kv-from-wrong-slot": ("commit.keys", 0),
    "commit-skipped": ("commit.keys", 0),
    "values-not-moved": ("commit.values", 0),
    "last-layer-not-moved": ("commit.keys", 2),
    "eos-inside-block-ignored": ("end", None),
}


class Kept(list[dict[str, Any]]):
    """Evidence, kept in memory."""

    def __call__(self, **evidence: Any) -> str:
        self.append(evidence)
        return "memory"


def gate(mutant: str | None, *, dtype: str = "float32", oracle: str = "linear") -> tuple[list[Comparison], Kept]:
    """Run the gate on the self-test's engine with a fault in force."""
    kit = registry.self_test()
    found = next((one for one in kit.mutants if one.name == mutant), None)
    with kit.open(None, dtype) as running:
        texts = record_expected(kit, running).texts
    kept = Kept()
    with kit.open(found, dtype) as running:
        running.record(texts)
        client = EngineClient(running, kit.pieces)
        spec = GateSpec(prompts=Path("p"), trees=(kit.tree,), oracles=(oracle,), max_new_tokens=kit.max_new_tokens)
        sides = Sides(candidate=client, oracle=client, process=None, trees=(kit.tree,), dtype=dtype)
        prompts = [Prompt(prompt_id=name, input_ids=ids) for name, ids in kit.prompts.items()]
        record = Record()
        runner = Runner(spec, prompts, sides, record, lambda _: None, keep=kept)
        for prompt in prompts:
            # One case is enough, and each takes a second.
            if not kept:
                runner.run_prompt(prompt)
        if not kept:
            # A fault on both sides alike parts no texts: look at the tree side of the longest prompt all the same.
            client.set_tree(kit.tree)
            client.flush_cache()
            question = {"input_ids": list(prompts[1].input_ids or ()), "max_new_tokens": 36, "position": 20}
            raw = client.examine(question)
            kept(examined={"candidate": TensorFile.parse(raw or b"").report()}, files={"candidate": raw})
    return record.comparisons, kept


@pytest.mark.parametrize(("mutant", "wanted"), FIRST_WRONG.items(), ids=FIRST_WRONG)
def test_R51_the_first_wrong_tensor_is_named(mutant: str, wanted: tuple[str, int | None]) -> None:
    comparisons, kept = gate(mutant)
    for evidence in kept:
        finding = evidence["examined"]["candidate"]["finding"]
        assert finding is not None
        assert (finding["tensor"], finding["layer"]) == wanted, finding["detail"]
        if finding["tensor"] in ("q", "attention"):
            assert finding["ulps"] > 2048
    reports = [one.mismatch for one in comparisons if one.mismatch and "forensics" in one.mismatch]
    assert all(report["verdict"] == "logic" for report in reports)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_R51_nothing_is_found_in_a_healthy_engine(dtype: str) -> None:
    comparisons, kept = gate(None, dtype=dtype)
    assert {one.verdict for one in comparisons} == {"identical"}
    (evidence,) = kept
    report = evidence["examined"]["candidate"]
    assert report["finding"] is None
    assert report["incomplete"] == ""
    assert report["num_checked_rows"] > 40


def test_R51_a_wrong_tie_is_logic_however_close_the_logits_are() -> None:
    comparisons, kept = gate("tie-broken-by-row")
    mismatches = [one for one in comparisons if one.mismatch]
    assert mismatches
    for one in mismatches:
        assert one.mismatch is not None
        assert one.mismatch["gap_ulp"] == 0
        assert one.verdict == MISMATCH
    sides = [evidence["examined"][side]["finding"] for evidence in kept for side in ("oracle", "candidate")]
    assert {finding["tensor"] for finding in sides if finding} == {"choice"}


@pytest.mark.parametrize("mutant", [None, "sums-in-memory-order"])
def test_R51_rounding_is_no_finding_and_shows_between_the_sides_only(mutant: str | None) -> None:
    kit = registry.self_test()
    with kit.open(next((one for one in kit.mutants if one.name == mutant), None), "float32") as running:
        client = EngineClient(running, kit.pieces)
        sides = []
        for tree in (PLAIN, kit.tree):
            client.set_tree(tree)
            question = {"input_ids": list(kit.prompts["chunked"]), "max_new_tokens": 36, "position": 20}
            file = TensorFile.parse(client.examine(question) or b"")
            sides.append((file.report(), file))
    assert [report["finding"] for report, _ in sides] == [None, None]
    other = first_differing(*sides)
    if mutant is None:
        assert other is None
    else:
        assert other is not None
        assert 0 < other["ulps"] < 2048


def test_R51_node_and_tree_of_the_round_are_reported() -> None:
    comparisons, kept = gate("sibling-visible")
    report = next(one.mismatch for one in comparisons if one.mismatch)
    assert report is not None
    seen = kept[0]["examined"]["candidate"]["round"]
    tokens, parents = seen["tree"]["tokens"], seen["tree"]["parents"]
    assert len(tokens) == len(parents)
    assert report["round"]["chosen_at"] == seen["chosen_at"]
    if report["round"]["source"] == "draft":
        node = report["round"]["node"]
        assert tokens[node] == report["candidate"]["token_id"]
        assert parents[node] == seen["chosen_at"]
    else:
        assert report["round"]["node"] is None


def test_R51_the_evidence_holds_the_tensors_and_the_reference() -> None:
    _, kept = gate("values-not-moved")
    evidence = kept[0]
    files = {side: TensorFile.parse(raw) for side, raw in evidence["files"].items()}
    assert set(files) == {"oracle", "candidate"}
    for side, file in files.items():
        assert json.loads(file.metadata["report"]) == evidence["examined"][side]
        names = {"tree.tokens", "positions.used", "positions.expected", "mask.used", "mask.expected", "logits"}
        assert {*names, "cache.keys", "cache.values", "layers.2.state", "reference.logits"} <= set(file.tensors)
    assert evidence["report"]["forensics"]["between_sides"]["tensor"] == "cache.values"
    # The reference agrees with the oracle, as the oracle's side is right.
    right = evidence["report"]["oracle"]["token_id"]
    assert evidence["examined"]["oracle"]["reference"]["top"][0][0] == right


def test_R51_ties_in_the_first_forward_count_from_round_zero() -> None:
    _, kept = gate("padded-row-leaks")
    assert kept[0]["examined"]["candidate"]["finding"]["round"] == 0


def test_R50_every_fault_that_parts_texts_is_found_in_a_step() -> None:
    # The table names faults of these kinds at least.
    assert len({tensor for tensor, _ in FIRST_WRONG.values()}) >= 8
