"""R50: the gate's own probes catch over HTTP what a comparison of single prompts on an empty cache cannot see."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from jetspec_cli.gating.probing import probe, spell
from jetspec_cli.gating.records import Record
from jetspec_cli.gating.sides import Sides
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_engine import registry
from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.embedded.assembly import build_engine
from support.live_server import LiveServer
from support.tiny_pairs import assembled_rig, make_tiny_pair

TREE = TreeConfig(width=4, budget=16)
PROMPTS = {"short": (5, 9, 3, 8), "longer": tuple(7 + 3 * i % 31 for i in range(20)), "third": (4, 4, 6)}
CAUGHT_BY = {
    "reverify": "work",
    "page-leak": "pages",
    "rows-of-another-request": "concurrency",
    "prefix-one-too-long": "cache",
    "cap-off-by-one": "ends",
    "stop-id-inside-block-ignored": "ends",
    "minimum-ignored": "ends",
    "sums-in-memory-order": "bits",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ServeConfig:
    folder: Path = tmp_path_factory.mktemp("pair")
    pair = {**make_tiny_pair(folder), "device": "cpu", "dtype": "float32", "num_threads": 1}
    with assembled_rig({**pair, "drafter": "wrong"}) as rig:
        texts = [rig.submit(ids, max_new_tokens=60, ignore_eos=True).wait().ids for ids in PROMPTS.values()]
    recordings = [
        {"prompt_ids": list(ids), "continuation_ids": text} for ids, text in zip(PROMPTS.values(), texts, strict=True)
    ]
    return ServeConfig(**{**pair, "drafter": "replay", "drafter_options": {"recordings": recordings, "rank": 1}})


@contextmanager
def served(config: ServeConfig, mutant: str | None) -> Iterator[tuple[ServerClient, Record]]:
    found = next((one for one in registry.self_test().mutants if one.name == mutant), None)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, replacement in found.patches() if found is not None else ():
            patch.setattr(owner, name, replacement)
        engine = build_engine(config, lambda progress: None)
        with LiveServer(engine) as live, ServerClient.connect(live.url) as client:
            yield client, Record()


def probed(client: ServerClient, record: Record) -> set[str]:
    sides = Sides(candidate=client, oracle=client, process=None, trees=(TREE,), dtype="float32")
    probe(sides, [Prompt(prompt_id=name, input_ids=ids) for name, ids in PROMPTS.items()], record)
    return {fault.check for fault in record.faults}


@pytest.mark.parametrize(("mutant", "check"), CAUGHT_BY.items(), ids=CAUGHT_BY)
def test_R50_a_probe_catches_the_fault_on_a_running_server(config, mutant, check):
    with served(config, mutant) as (client, record):
        assert check in probed(client, record)
    fault = next(fault for fault in record.faults if fault.check == check)
    assert fault.verdict == ("near_tie" if check == "bits" else "mismatch")
    assert fault.detail


def test_R50_a_healthy_server_passes_every_probe(config):
    with served(config, None) as (client, record):
        assert probed(client, record) == set()
        assert record.num_probed == {"bits": 2, "ends": 2, "cache": 2, "work": 2, "concurrency": 3, "pages": 1}
        assert "".join(spell(client, PROMPTS["longer"])) == client.detokenize(PROMPTS["longer"])


def test_R50_a_drafter_that_learns_from_the_probes_themselves_is_no_fault(config):
    learning = replace(config, drafter="recall", drafter_options={})
    with served(learning, None) as (client, record):
        assert probed(client, record) == set()
