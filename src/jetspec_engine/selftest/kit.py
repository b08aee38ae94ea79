"""Where mutants are tried: tiny pairs in an embedded engine, with what a check needs to look behind it.

Knows mutants and engines; knows nothing of checks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from jetspec_engine.config import TREE_RULES, ServeConfig, TreeConfig
from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.embedded.pages import PagePool
from jetspec_engine.embedded.reference import reference_forward
from jetspec_engine.embedded.reference_hybrid import hybrid_reference_forward
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.forensics.arithmetic import Source
from jetspec_engine.forensics.examine import examine, question_of
from jetspec_engine.forensics.pack import to_bytes
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.selftest import (
    faults_accept,
    faults_draft,
    faults_hybrid,
    faults_state,
    faults_verify,
    tiny_hybrid,
    tiny_pair,
)
from jetspec_engine.selftest.hinted_drafter import HintedDrafter
from jetspec_engine.selftest.mutants import Mutant
from jetspec_engine.tree.rules import BUILDERS

PAGE_SIZE, NUM_PAGES = 16, 128
PREFILL_CHUNK = 16
MAX_RUNNING = 4
MAX_NEW_TOKENS = 36
TREE = TreeConfig(rule=TREE_RULES[0], width=3, budget=24)
# One prompt within a page, others over several prefill chunks; these share a beginning.
PROMPTS: Mapping[str, tuple[int, ...]] = {
    "short": (5, 9, 3),
    "chunked": tuple(3 + 7 * i % 33 for i in range(21)),
    "shared": tuple(3 + 7 * i % 33 if i < 18 else 4 + i % 7 for i in range(26)),
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A target that mutants are tried on.

    Attributes:
        config, weights: of the target; weights of a dtype.
        reference: its slow forward.
    """

    config: DecoderConfig
    weights: Callable[[torch.dtype], dict[str, torch.Tensor]]
    reference: Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Running:
    """A running engine.

    Attributes:
        engine: ``protocol.CompletionEngine``.
        subject: the target.
        dtype: of the target.
        drafter: its ``texts`` can be set.
    """

    engine: EmbeddedEngine
    subject: Subject
    dtype: str
    drafter: Any

    def examine(self, question: Mapping[str, Any]) -> bytes:
        """Decode a prompt again under observation; a safetensors file, as ``POST /jetspec/examine`` answers."""
        made = Source(config=self.subject.config, weights=self.subject.weights(getattr(torch, self.dtype)))
        found = examine(self.engine, lambda: made, question_of(question))
        return to_bytes(found.report, found.tensors)

    def record(self, texts: Mapping[tuple[int, ...], tuple[int, ...]]) -> None:
        """Give the drafter whole texts to take hints from."""
        self.drafter.texts = dict(texts)


SUBJECTS = {
    "dense": Subject(config=tiny_pair.TARGET, weights=tiny_pair.target_weights, reference=reference_forward),
    "hybrid": Subject(
        config=tiny_hybrid.TARGET,
        weights=tiny_hybrid.target_weights,
        reference=hybrid_reference_forward,
    ),
}

# Faults that are also tried in bfloat16, where rounding could hide what float32 shows: one or more of every kind.
IN_BFLOAT16 = (
    "position-by-index", "sibling-visible", "window-by-index", "padded-row-leaks", "rope-offset-behind",
    "sums-in-float16", "rows-of-another-request", "bonus-off-by-one", "target-tie-last-wins",
    "eos-inside-block-ignored", "kv-from-wrong-slot", "values-not-moved", "prefix-one-too-long", "head-bidirectional",
    "wrong-state-parent",
)  # fmt: skip


def all_mutants() -> tuple[Mutant, ...]:
    """Return the mutants of every table, and those that are tried once more in bfloat16 after them."""
    areas = (faults_verify, faults_accept, faults_state, faults_draft, faults_hybrid)
    mutants = [mutant for area in areas for mutant in area.TABLE.mutants]
    by_name = {mutant.name: mutant for mutant in mutants}
    again = [replace(by_name[name], name=f"{name}-bfloat16", dtype="bfloat16") for name in IN_BFLOAT16]
    return (*mutants, *again)


class SelfTest:
    """Mutants and where to try them. Found through the registry.

    Args:
        subject: the target to try on; mutants say which they are for, and ``on`` leads there.

    Attributes:
        mutants: all of them, those that do not apply yet included.
        prompts: name to ids.
        tree: the tree to try.
        prefill_chunk: most prompt tokens a forward, to foresee forwards.
        max_new_tokens: a cap long enough for faults to show.
        special_ids: ids that are left out of texts.
        pieces: a letter for every token id, special ones included.
    """

    mutants: tuple[Mutant, ...] = all_mutants()
    prompts = PROMPTS
    tree = TREE
    prefill_chunk = PREFILL_CHUNK
    max_new_tokens = MAX_NEW_TOKENS
    special_ids = (tiny_pair.EOS_ID, tiny_pair.MASK_ID)
    pieces = tiny_pair.PIECES

    def __init__(self, subject: str = "dense") -> None:
        self._subject = SUBJECTS[subject]

    def on(self, subject: str) -> "SelfTest":
        """Return the same for another target."""
        return SelfTest(subject)

    @contextmanager
    def open(self, mutant: Mutant | None, dtype: str) -> Iterator[Running]:
        """Build the engine with a mutant in force (None: healthy) and close it afterwards."""
        if mutant is None:
            with _running(self._subject, dtype) as running:
                yield running
            return
        with mutant.applied(), _running(self._subject, dtype) as running:
            yield running

    def reference_logits(self, ids: Sequence[int]) -> list[list[float]]:
        """Return the float64 reference's logits (T, V) after every id of a text, from the float32 weights."""
        positions = torch.arange(len(ids))
        sees = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        weights = self._subject.weights(torch.float32)
        logits, _ = self._subject.reference(self._subject.config, weights, torch.tensor(ids), positions, sees)
        found: list[list[float]] = logits.tolist()
        return found


@contextmanager
def _running(subject: Subject, dtype: str) -> Iterator[Running]:
    kind = getattr(torch, dtype)
    weights = subject.weights(kind)
    embedding = weights["embed_tokens.weight"]
    num_slots = NUM_PAGES * PAGE_SIZE
    # Typed loosely, as the head drafter's sessions are narrower than the protocol's.
    drafter: Any
    with torch.inference_mode():
        target = DecoderTarget(subject.config, weights, num_slots=num_slots, max_nodes=64, taps=tiny_pair.TAPS)
        drafter = HintedDrafter(
            tiny_pair.draft_head(),
            tiny_pair.HEAD,
            lambda ids: functional.embedding(ids, embedding),
            target.lm_head,
            num_slots=num_slots,
            device="cpu",
            dtype=kind,
        )
    drafter.texts = {}
    config = ServeConfig(tree=TREE, max_budget=64, max_running=MAX_RUNNING, page_size=PAGE_SIZE)
    engine = EmbeddedEngine(
        target=target,
        drafter=drafter,
        tokenizer=tiny_pair.TinyTokenizer(),
        pool=PagePool(NUM_PAGES, PAGE_SIZE),
        builders=BUILDERS,
        config=config,
        prefill_chunk=PREFILL_CHUNK,
        facts={**target.describe(), "dtype": dtype, "target": "tiny", "head": "tiny"},
    )
    try:
        yield Running(engine=engine, subject=subject, dtype=dtype, drafter=drafter)
    finally:
        engine.close()
