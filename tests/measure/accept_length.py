"""Held-out accept length by class of text, decoded live by the engine: python -m tests.measure.accept_length.

Pooled accept length is emitted tokens over rounds; class means stand beside it. Every tree must give the linear path's
ids, and does, or the script stops. The same texts are then replayed with the head (``training.replay``), so that the
two ways of counting stand beside each other. Classes take turns, so that a time limit cuts all of them alike.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.measure.common import CLASSES, answer, encode, read_prompts, stamp, start, write

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.draft.checkpoint import load_head
from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.records import SamplingParams
from jetspec_engine.training.head_blocks import HeadBlocks
from jetspec_engine.training.replay import draft_everywhere, replay
from jetspec_engine.training.target_files import read_target
from jetspec_engine.training.text_pool import TextPool

TREES = {
    "linear": LINEAR,
    "best_first_16": TreeConfig(budget=16),
    "best_first_32": TreeConfig(budget=32),
    "best_first_64": TreeConfig(budget=64),
    "best_first_128": TreeConfig(budget=128),
    "top2gap_16": TreeConfig(rule="top2gap", budget=16),
    "top2gap_64": TreeConfig(rule="top2gap", budget=64),
}
# Counts of one way of counting: class -> tree -> [emitted tokens, rounds].
Counts = dict[str, dict[str, list[int]]]


@dataclass(frozen=True)
class Text:
    """One decoded prompt, for the replay."""

    text_class: str
    prompt: tuple[int, ...]
    emitted: tuple[int, ...]


def main() -> None:
    """Decode the class sets with every tree, replay what came out, and write both tables."""
    options = read_options()
    trees = {name: TREES[name] for name in options.trees.split(",")}
    engine = start(max_running=1, num_threads=options.threads, dtype=options.dtype, head=options.head)
    document = stamp(engine)
    live: Counts = {name: {} for name in CLASSES}
    texts: list[Text] = []
    deadline = time.monotonic() + options.seconds
    for index in range(options.limit):
        if time.monotonic() > deadline:
            break
        for name in CLASSES:
            texts.append(decode(engine, name, read_prompts(name)[index], trees, live[name]))
        print(f"{index + 1} a class:", summarise(live)["pooled"], flush=True)
        result = {"live": summarise(live), "num_prompts": len(texts), "answer_tokens": mean_lengths(texts)}
        write(options.out, document | {"result": result})
    info = dict(engine.info())
    engine.close()
    replayed = replay_all(texts, trees, Path(info["target_path"]), Path(info["head_path"]), info["dtype"])
    write(options.out, document | {"result": result | {"replayed": summarise(replayed), "unit": UNIT}})
    print(summarise(replayed)["pooled"])


UNIT = "emitted tokens a round, bonus included; the prefill and its token are left out of both, as in the replay"


def read_options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=20, help="prompts a class")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further prompts after this")
    parser.add_argument("--trees", default=",".join(TREES), help=f"of {', '.join(TREES)}; linear first")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--head", default="auto")
    return parser.parse_args()


def decode(
    engine: EmbeddedEngine, name: str, prompt: dict[str, Any], trees: Mapping[str, TreeConfig], counts: dict[str, Any]
) -> Text:
    """Decode one prompt with every tree, on an empty cache each time, and count."""
    ids, sampling = encode(engine, prompt), SamplingParams(max_new_tokens=prompt["max_new_tokens"])
    expected: tuple[int, ...] | None = None
    for tree_name, tree in trees.items():
        found = answer(engine, tree, ids, sampling)
        expected = found.ids if expected is None else expected
        if found.ids != expected:
            raise SystemExit(f"{prompt['id']}: {tree_name} differs from the first tree's text")
        cell = counts.setdefault(tree_name, [0, 0])
        cell[0] += found.stats.num_emitted_tokens - 1
        cell[1] += found.stats.num_rounds - 1
    assert expected is not None
    return Text(name, ids, expected)


def replay_all(
    texts: list[Text], trees: Mapping[str, TreeConfig], target_folder: Path, head_folder: Path, dtype_name: str
) -> Counts:
    """Replay the decoded texts with the head's training forward, in the engine's dtype."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    target = read_target(target_folder, device=torch.device("cpu"), dtype=dtype, max_positions=4096).target
    head = load_head(head_folder, dtype=torch.float32, device="cpu")
    ones = torch.ones(len(head.config.target_layer_ids) * head.config.hidden_size)
    blocks = HeadBlocks(head.config, target.embedding, ones, dtype=dtype, max_positions=4096)
    parameters = dict(head.state_dict())
    counts: Counts = {name: {} for name in CLASSES}
    for text in texts:
        ids = torch.tensor([[*text.prompt, *text.emitted]], dtype=torch.int32)
        lengths = torch.tensor([ids.shape[1]])
        pool = TextPool(ids, lengths, torch.tensor([len(text.prompt)]), torch.ones(1, dtype=torch.bool))
        [drafts] = draft_everywhere(blocks, parameters, target, pool, width=8)
        for tree_name, tree in trees.items():
            emitted, rounds = replay(drafts, tree)
            cell = counts[text.text_class].setdefault(tree_name, [0, 0])
            cell[0] += emitted
            cell[1] += rounds
    return counts


def summarise(counts: Counts) -> dict[str, Any]:
    """Return accept lengths by class, pooled and as class means, and what they were counted from."""
    trees = list(next(iter(counts.values())))
    table = {name: {tree: round(n / r, 4) for tree, (n, r) in row.items()} for name, row in counts.items()}
    sums = {tree: [sum(row[tree][i] for row in counts.values()) for i in (0, 1)] for tree in trees}
    return {
        **table,
        "pooled": {tree: round(n / r, 4) for tree, (n, r) in sums.items()},
        "class_mean": {tree: round(sum(row[tree] for row in table.values()) / len(table), 4) for tree in trees},
        "counts": {name: {t: {"emitted": n, "rounds": r} for t, (n, r) in row.items()} for name, row in counts.items()},
    }


def mean_lengths(texts: list[Text]) -> dict[str, float]:
    """Return the mean answer length of each class, tokens."""
    by_class = {name: [len(t.emitted) for t in texts if t.text_class == name] for name in CLASSES}
    return {name: round(sum(lengths) / len(lengths), 1) for name, lengths in by_class.items()}


if __name__ == "__main__":
    main()
