"""Key lists of tree nodes against the record's own ancestors."""

import pytest

torch = pytest.importorskip("torch")

from jetspec_engine.sglang_backend.node_lists import NodeLists, attention_reference, node_lists  # noqa: E402
from jetspec_engine.tree.batched import build_best_first_batched  # noqa: E402


def trees_of(seed, *, requests=3, depth=5, width=4, nodes=16, budget=None):
    made = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 99, (requests, depth, width), generator=made)
    logprobs = torch.randn(requests, depth, width, generator=made).log_softmax(-1)
    return build_best_first_batched(
        torch.zeros(requests, dtype=torch.int64), tokens, logprobs, num_nodes=nodes, budget=budget
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_list_is_the_ancestors_by_depth_and_the_node_itself(seed):
    trees = trees_of(seed, budget=torch.tensor([16, 7, 1]))
    slots = torch.randperm(200, generator=torch.Generator().manual_seed(seed))[:48].reshape(3, 16)
    lists = node_lists(trees, slots, 5)
    assert lists.path.shape == (3, 16, 6)
    for request in range(3):
        for node in range(16):
            expected, at = [], node
            while at >= 0:
                expected.insert(0, int(slots[request, at]))
                at = int(trees.parents[request, at])
            depth = int(lists.depths[request, node])
            assert lists.path[request, node, : depth + 1].tolist() == expected
            assert set(lists.path[request, node, depth + 1 :].tolist()) <= {int(slots[request, node])}


def test_the_reference_gives_a_single_key_its_value():
    values = torch.randn(3, 1, 16)
    lists = NodeLists(path=torch.tensor([[[2]]]), depths=torch.tensor([[0]]))
    empty = [torch.tensor([], dtype=torch.int64)]
    query, keys = torch.randn(1, 1, 2, 16), torch.randn(3, 1, 16)
    out = attention_reference(query, keys, values, prefix=empty, lists=lists, scale=1.0)
    assert torch.equal(out[0, 0, 1], values[2, 0])
