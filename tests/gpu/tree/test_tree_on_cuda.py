"""The device half of the tree core on a real device: the CPU's results, no host sync, one graph for every setting."""

import math
import random
import warnings

import pytest
import torch

from jetspec_engine.config import TreeConfig
from jetspec_engine.tree.accept import accept_greedy, greedy_ids
from jetspec_engine.tree.accept_batched import accept_greedy_batched
from jetspec_engine.tree.batched import build_best_first_batched
from jetspec_engine.tree.best_first import build_best_first
from jetspec_engine.tree.candidates import chain_candidates, top_candidates
from jetspec_engine.tree.record import DraftTree
from support.tree_cases import ODD, TIED, assert_same_tree, candidates_of, random_candidates

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def no_sync():
    """Every host sync inside the test raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def stacked(candidates):
    tokens = torch.stack([torch.as_tensor(c.tokens) for c in candidates])
    return tokens, torch.stack([torch.as_tensor(c.logprobs) for c in candidates])


def tied_candidates(seed: int, depth: int = 15, width: int = 8):
    """Few values and odd ones, so that every order of equal keys shows."""
    rng = random.Random(seed)
    values = TIED if seed % 2 else (*TIED, *TIED, *ODD)
    return candidates_of([[rng.choice(values) for _ in range(width)] for _ in range(depth)])


def row_of(trees, row: int) -> DraftTree:
    count = int(trees.num_nodes[row])
    fields = (trees.tokens, trees.parents, trees.depths, trees.logprobs)
    return DraftTree(*(field[row, :count].cpu().numpy() for field in fields))


@pytest.mark.parametrize("num_nodes", [16, 64, 128])
@pytest.mark.parametrize("make", [random_candidates, tied_candidates])
def test_R10_trees_on_the_device_equal_the_heaps(make, num_nodes):
    candidates = [make(seed) for seed in range(32)]
    tokens, logprobs = stacked(candidates)
    for keep_spine in (False, True):
        trees = build_best_first_batched(
            torch.arange(32).cuda(), tokens.cuda(), logprobs.cuda(), num_nodes=num_nodes, keep_spine=keep_spine
        )
        config = TreeConfig(width=8, budget=num_nodes, keep_spine=keep_spine)
        for row, given in enumerate(candidates):
            assert_same_tree(row_of(trees, row), build_best_first(row, given, config))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_case_15_ties_go_to_the_lower_id_as_on_the_cpu(dtype):
    generator = torch.Generator().manual_seed(0)
    for vocabulary in (97, 1000, 49152, 151936):
        logits = (torch.randn(16, vocabulary, generator=generator) * 3).to(dtype)
        logits.scatter_(1, torch.randint(0, vocabulary, (16, 30), generator=generator), 20.0)
        logits[1, 5], logits[2, 5], logits[3, 5] = math.nan, math.inf, -math.inf
        logits[4] = -math.inf
        assert greedy_ids(logits.cuda()).tolist() == greedy_ids(logits).tolist()
        on_device, on_host = top_candidates(logits.cuda(), 8), top_candidates(logits, 8)
        assert on_device.tokens.tolist() == on_host.tokens.tolist()
        torch.testing.assert_close(on_device.logprobs.cpu(), on_host.logprobs, rtol=0, atol=5e-6)
        assert chain_candidates(logits.cuda()).tokens.tolist() == chain_candidates(logits).tokens.tolist()


def test_one_round_never_syncs_with_the_host(no_sync):
    tokens, logprobs = (tensor.pin_memory().cuda(non_blocking=True) for tensor in stacked([random_candidates(0)]))
    anchors = torch.zeros(1, dtype=torch.int64, device="cuda")
    budget, width = torch.full((), 32, device="cuda"), torch.full((), 4, device="cuda")
    logits = torch.zeros(15, 49152, device="cuda")
    top_candidates(logits, 8)
    chain_candidates(logits)
    trees = build_best_first_batched(anchors, tokens, logprobs, num_nodes=64, budget=budget, width=width)
    accept_greedy_batched(trees, greedy_ids(torch.zeros(64, 1000, device="cuda"))[None], 15)


def test_R17_one_graph_serves_every_budget_width_and_spine_setting():
    anchors = torch.arange(4).cuda()
    tokens, logprobs = (tensor.cuda() for tensor in stacked([random_candidates(seed) for seed in range(4)]))
    budget, width = torch.full((), 64).cuda(), torch.full((), 8).cuda()
    keep_spine = torch.full((), False).cuda()
    target_ids = torch.zeros(4, 64, dtype=torch.int64).cuda()

    def run():
        trees = build_best_first_batched(
            anchors, tokens, logprobs, num_nodes=64, budget=budget, width=width, keep_spine=keep_spine
        )
        return trees, accept_greedy_batched(trees, target_ids, 15)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        trees, accepted = run()
    for seed, (b, w, spine) in enumerate([(64, 8, False), (16, 8, True), (20, 3, True), (64, 1, False), (1, 8, False)]):
        candidates = [random_candidates(100 * seed + row) for row in range(4)]
        for buffer, value in zip((tokens, logprobs), stacked(candidates), strict=True):
            buffer.copy_(value)
        budget.fill_(b)
        width.fill_(w)
        keep_spine.fill_(spine)
        # The target agrees with the last child of every node it has one for: a path of non-first children.
        graph.replay()
        for row in range(4):
            target_ids[row].zero_()
            for node in range(1, int(trees.num_nodes[row])):
                target_ids[row, trees.parents[row, node]] = trees.tokens[row, node]
        graph.replay()
        for row, given in enumerate(candidates):
            tree = build_best_first(row, given, TreeConfig(width=w, budget=b, keep_spine=spine))
            assert_same_tree(row_of(trees, row), tree)
            expected = accept_greedy(tree, target_ids[row, : tree.num_nodes])
            count = int(accepted.num_correct_drafts[row])
            assert tuple(accepted.path[row, : count + 1].tolist()) == expected.path
            assert int(accepted.bonus[row]) == expected.bonus
