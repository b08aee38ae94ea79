"""Times the tree core on one CPU core; run by hand: ``OMP_NUM_THREADS=1 python tests/unit/tree/bench_tree.py``.

Prints minima of many repeats in microseconds. Not a test.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from jetspec_engine.config import TreeConfig
from jetspec_engine.protocol import Candidates
from jetspec_engine.tree.accept import accept_greedy, greedy_ids
from jetspec_engine.tree.batched import build_best_first_batched
from jetspec_engine.tree.candidates import chain_candidates, top_candidates
from jetspec_engine.tree.mask import ancestor_mask
from jetspec_engine.tree.rules import BUILDERS
from support.tree_cases import random_candidates


def show(label: str, call: Callable[[], object], repeats: int = 300) -> None:
    """Print the fastest of many calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    print(f"{label:45s} {best * 1e6:9.1f} us")  # noqa: T201


def main() -> None:
    """Print every timing."""
    torch.set_num_threads(1)
    given = random_candidates(0)
    candidates = Candidates(tokens=torch.from_numpy(given.tokens), logprobs=torch.from_numpy(given.logprobs))
    for rule in ("best_first", "top2gap", "accum_logp"):
        for budget in (16, 64, 128):
            config = TreeConfig(rule=rule, width=8, budget=budget)
            show(f"{rule} W8 B{budget} D15", lambda r=rule, c=config: BUILDERS[r](1, candidates, c))
    tree = BUILDERS["best_first"](1, candidates, TreeConfig(width=8, budget=64))
    ids = torch.zeros(64, dtype=torch.int64)
    show("accept_greedy N64", lambda: accept_greedy(tree, ids))
    show("ancestor_mask N64", lambda: ancestor_mask(tree.parents))
    batch = (torch.ones(1, dtype=torch.int64), candidates.tokens[None], candidates.logprobs[None])
    show("batched best_first W8 N64 D15, 1 request", lambda: build_best_first_batched(*batch, num_nodes=64))
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        target, draft = torch.randn(16, 49152).to(dtype), (torch.randn(15, 49152) * 3).to(dtype)
        show(f"greedy_ids 16 x 49152 {name}", lambda t=target: greedy_ids(t))
        show("  torch.argmax", lambda t=target: t.argmax(dim=-1))
        show(f"top_candidates 15 x 49152 W8 {name}", lambda d=draft: top_candidates(d, 8))
        show("  log_softmax + topk", lambda d=draft: d.float().log_softmax(dim=-1).topk(8))
        show(f"chain_candidates 15 x 49152 {name}", lambda d=draft: chain_candidates(d))


if __name__ == "__main__":
    main()
