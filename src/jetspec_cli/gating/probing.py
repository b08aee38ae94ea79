"""Runs the probes on the server under test, after its comparisons: for the first drafting tree, on a few prompts.

Servers of other makes lack what probes ask for and are left alone; which probes ran is in the summary. Knows probes
and records.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from jetspec_cli.gating import records
from jetspec_cli.gating.probes import BRIEF, LONGEST, Catch, Probes, record_texts
from jetspec_cli.gating.records import Fault, Record
from jetspec_cli.gating.sides import Sides
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.describe import tree_label
from jetspec_cli.serving.pending import Crowd
from jetspec_engine.errors import BusyError, ConfigError, EngineError

# Whose every end and bit is tried; more of them are sent together.
NUM_CLOSELY, NUM_TOGETHER = 2, 8
# A prompt takes so many tokens at most: the probes decode it a dozen times.
MAX_PROMPT_TOKENS = 512
# Of a text whose ends are tried; see ``ends``.
MIN_ENDLESS = 40


def probe(sides: Sides, prompts: Sequence[Prompt], record: Record) -> None:
    """Probe the candidate; what is caught becomes faults of the record, which is mutated."""
    client = sides.candidate
    tree = next((one for one in sides.trees if one is not None and one.width > 1), None)
    if client.kind != "jetspec" or tree is None or client.info.get("engine") != "embedded":
        return
    rendered = {prompt.prompt_id: client.render(prompt) for prompt in prompts}
    chosen = {name: ids for name, ids in rendered.items() if ids is not None and len(ids) <= MAX_PROMPT_TOKENS}
    closely = dict(list(chosen.items())[:NUM_CLOSELY])
    together = dict(list(chosen.items())[:NUM_TOGETHER])
    label, dtype = tree_label(tree), sides.dtype
    crowd = Crowd(client)
    try:
        texts = record_texts(crowd, closely, LONGEST)
    except (EngineError, BusyError, ConfigError) as error:
        record.note(f"{client.url}: not probed: {error.what}")
        return
    # A context that ends early has no room for the end rules.
    roomy = {name: ids for name, ids in closely.items() if len(texts[ids]) - len(ids) >= MIN_ENDLESS}
    close = Probes(client=crowd, tree=tree, prompts=roomy, texts=texts, spell=lambda ids: spell(client, ids))
    group = Probes(client=crowd, tree=tree, prompts=together, texts=texts, spell=close.spell)
    runs: dict[str, tuple[int, Callable[[], Iterator[Catch]]]] = {
        "bits": (len(roomy), close.bits),
        "ends": (len(roomy), close.ends),
        "cache": (len(roomy), close.cache),
        "work": (len(roomy), close.work),
        "concurrency": (len(together), lambda: _concurrency(group)),
        "pages": (1, close.pages),
    }
    for name, (num_checked, run) in runs.items():
        if num_checked:
            record.num_probed[name] = record.num_probed.get(name, 0) + num_checked
        for caught in _caught(name, run):
            # Other bits for the same token are rounding, and rounding is what a near-tie is.
            verdict = records.NEAR_TIE if caught.check == "bits" else records.MISMATCH
            verdict = records.FAILED if caught.check == "requests" else verdict
            where = "" if caught.token is None else f"token {caught.token}: "
            record.faults.append(
                Fault(
                    check=name, dtype=dtype, prompt_id=caught.prompt, label=label, verdict=verdict,
                    detail=f"{where}{caught.detail}",
                )
            )  # fmt: skip


def spell(client: ServerClient, ids: Sequence[int]) -> list[str | None]:
    """Return the letters that each id of a text adds to it; a special token adds none.

    Args:
        client: of our own server.
        ids: a text's ids. A character that takes several of them counts for the last; the others, after which the
            text ends within a character, have None.
    """
    whole = [client.detokenize(ids[:count], skip_special_tokens=True) or "" for count in range(len(ids) + 1)]
    certain = [text.rstrip("\ufffd") for text in whole]
    added = [after[len(before) :] for before, after in pairwise(certain)]
    return [
        letters if text == whole_text else None
        for letters, text, whole_text in zip(added, certain[1:], whole[1:], strict=True)
    ]


def _concurrency(probes: Probes) -> Iterator[Catch]:
    solo = {
        name: probes.submit(ids, probes.tree, max_new_tokens=BRIEF).generation()
        for name, ids in probes.prompts.items()
    }  # fmt: skip
    yield from probes.concurrency(solo, BRIEF, 1)


def _caught(name: str, run: Callable[[], Iterator[Catch]]) -> Iterator[Catch]:
    try:
        yield from run()
    except (EngineError, BusyError, ConfigError) as error:
        yield Catch(check="requests", prompt=name, token=None, detail=error.what)
