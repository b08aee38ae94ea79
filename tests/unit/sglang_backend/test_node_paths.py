"""Paths of tree nodes against the record's own ancestors."""

import pytest

torch = pytest.importorskip("torch")

from jetspec_engine.sglang_backend.node_paths import node_paths  # noqa: E402
from jetspec_engine.tree.batched import build_best_first_batched  # noqa: E402


def trees_of(seed, *, requests=3, depth=5, width=4, nodes=16, budget=None):
    made = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 99, (requests, depth, width), generator=made)
    logprobs = torch.randn(requests, depth, width, generator=made).log_softmax(-1)
    return build_best_first_batched(
        torch.zeros(requests, dtype=torch.int64), tokens, logprobs, num_nodes=nodes, budget=budget
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_path_is_the_ancestors_by_depth_and_the_node_itself(seed):
    trees = trees_of(seed, budget=torch.tensor([16, 7, 1]))
    path = node_paths(trees, 5)
    assert path.shape == (3, 16, 6)
    for request in range(3):
        for node in range(16):
            expected, at = [], node
            while at >= 0:
                expected.insert(0, at)
                at = int(trees.parents[request, at])
            depth = int(trees.depths[request, node])
            assert path[request, node, : depth + 1].tolist() == expected
            assert set(path[request, node, depth + 1 :].tolist()) <= {node}
