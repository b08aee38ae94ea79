"""Bitwise: a node verified by its own key list equals the chain, whatever siblings, boundary and row count it has.

Two constructions are put to the test: SGLang's own unified extend kernel fed one node a sequence, and our kernel.
On a GPU the kernels are compiled, elsewhere Triton interprets them; what the interpreter proves is the order of the
sums, not what a compiler makes of it.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    # Triton's interpreter reads scalars in a way that numpy 2.4 refuses.
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from jetspec_engine.sglang_backend.list_attention import KEY_BLOCK, attend_by_lists  # noqa: E402
from jetspec_engine.sglang_backend.node_lists import attention_reference, node_lists  # noqa: E402
from jetspec_engine.tree.batched import build_best_first_batched  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, KV_HEADS, WIDTH, SCALE, DEPTH, SLOTS = 6, 2, 64, 0.125, 6, 400
# The prefix ends in the middle of a block, at its end, one past it, and where the tree itself crosses into the next.
PREFIXES = (5, KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1, KEY_BLOCK - 3, 2 * KEY_BLOCK + 7)


class Scene:
    """A pool of keys in shuffled slots, a tree of N nodes, and the query of every node, all from one seed."""

    def __init__(self, seed, prefix_len, dtype, nodes=12):
        made = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=made).to(dtype).to(DEVICE)

        tokens = torch.randint(0, 99, (1, DEPTH, 4), generator=made)
        logprobs = torch.randn(1, DEPTH, 4, generator=made).log_softmax(-1)
        anchor = torch.zeros(1, dtype=torch.int64)
        self.trees = build_best_first_batched(
            anchor.to(DEVICE), tokens.to(DEVICE), logprobs.to(DEVICE), num_nodes=nodes, keep_spine=True
        )
        slots = torch.randperm(SLOTS, generator=made).to(DEVICE)
        self.prefix, self.own = slots[:prefix_len], slots[prefix_len : prefix_len + nodes]
        self.keys, self.values = normal(SLOTS, KV_HEADS, WIDTH), normal(SLOTS, KV_HEADS, WIDTH)
        self.query = normal(1, nodes, HEADS, WIDTH)
        self.lists = node_lists(self.trees, self.own.unsqueeze(0), DEPTH)

    def path_of(self, node):
        """Return the slots of a node's ancestors and its own."""
        return self.lists.path[0, node, : int(self.lists.depths[0, node]) + 1]

    def deepest(self):
        """Return the deepest node and its ancestors, from the root on."""
        at, path = int(self.lists.depths[0].argmax()), []
        while at >= 0:
            path.insert(0, at)
            at = int(self.trees.parents[0, at])
        return path


def ours(query, scene, prefix, lists):
    """Run our kernel over one request."""
    indptr = torch.tensor([0, len(prefix)], device=DEVICE)
    return attend_by_lists(
        query, scene.keys, scene.values, indptr=indptr, indices=prefix.contiguous(), lists=lists, scale=SCALE
    )


def chain_lists(scene, slots):
    """Return the lists of a chain in these slots."""
    count = len(slots)
    trees = build_best_first_batched(
        torch.zeros(1, dtype=torch.int64, device=DEVICE),
        torch.zeros(1, max(count - 1, 1), 1, dtype=torch.int64, device=DEVICE),
        torch.zeros(1, max(count - 1, 1), 1, device=DEVICE),
        num_nodes=count,
    )
    return node_lists(trees, slots.unsqueeze(0), count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("prefix_len", PREFIXES)
def test_our_kernel_gives_tree_and_chain_the_same_bits(prefix_len, dtype):
    scene = Scene(prefix_len, prefix_len, dtype)
    tree = ours(scene.query, scene, scene.prefix, scene.lists)
    path = scene.deepest()
    assert len(path) > 3
    slots = scene.own[torch.tensor(path, device=DEVICE)]
    chain = ours(scene.query[:, path].contiguous(), scene, scene.prefix, chain_lists(scene, slots))
    assert torch.equal(chain, tree[:, path])
    # The same text cut elsewhere: two nodes of the path are committed already.
    moved = torch.cat([scene.prefix, slots[:2]])
    rest = ours(scene.query[:, path[2:]].contiguous(), scene, moved, chain_lists(scene, slots[2:]))
    assert torch.equal(rest, tree[:, path[2:]])
    # One row alone: the number of rows does not matter either.
    alone = ours(scene.query[:, path[-1:]].contiguous(), scene, torch.cat([scene.prefix, slots[:-1]]),
                 chain_lists(scene, slots[-1:]))  # fmt: skip
    assert torch.equal(alone, tree[:, path[-1:]])


@pytest.mark.parametrize("prefix_len", PREFIXES)
def test_our_kernel_agrees_with_the_reference(prefix_len):
    scene = Scene(prefix_len, prefix_len, torch.float32)
    expected = attention_reference(
        scene.query, scene.keys, scene.values, prefix=[scene.prefix], lists=scene.lists, scale=SCALE
    )
    torch.testing.assert_close(ours(scene.query, scene, scene.prefix, scene.lists), expected, rtol=1e-5, atol=1e-5)


def test_a_sibling_changes_no_bit_and_an_ancestor_does():
    scene = Scene(3, KEY_BLOCK - 2, torch.float32)
    before = ours(scene.query, scene, scene.prefix, scene.lists)
    path = scene.deepest()
    outside = next(node for node in range(12) if node not in path)
    scene.values[scene.own[outside]] += 1000
    after = ours(scene.query, scene, scene.prefix, scene.lists)
    assert torch.equal(after[:, path], before[:, path])
    scene.values[scene.own[path[1]]] += 1000
    assert not torch.equal(ours(scene.query, scene, scene.prefix, scene.lists)[:, path[-1]], before[:, path[-1]])


def stock(plugged, query, scene, sequences, extend):
    """Run SGLang's unified kernel: one list of slots a sequence, of which the last ``extend`` are queries."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd_unified

    lengths = torch.tensor([len(slots) for slots in sequences], dtype=torch.int32)
    queries = query.reshape(-1, HEADS, WIDTH).contiguous()
    out = torch.empty_like(queries)

    def pointers(counts):
        return torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()]).to(DEVICE)

    extended = torch.full_like(lengths, extend)
    extend_attention_fwd_unified(
        queries, out, scene.keys, scene.values, 1.0, 1.0, pointers(extended), pointers(lengths), torch.cat(sequences),
        (lengths - extend).to(DEVICE), extend, sm_scale=SCALE,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("prefix_len", PREFIXES)
def test_sglangs_unified_kernel_one_node_a_sequence_equals_its_chain(plugged, rows_apart, prefix_len, dtype):
    scene = Scene(prefix_len, prefix_len, dtype)
    sequences = [torch.cat([scene.prefix, scene.path_of(node)]) for node in range(12)]
    tree = stock(plugged, scene.query, scene, sequences, 1)
    path = scene.deepest()
    slots = scene.own[torch.tensor(path, device=DEVICE)]
    chain = stock(plugged, scene.query[0, path], scene, [torch.cat([scene.prefix, slots])], len(path))
    assert torch.equal(chain, tree[path])
    moved = stock(plugged, scene.query[0, path[2:]], scene, [torch.cat([scene.prefix, slots])], len(path) - 2)
    assert torch.equal(moved, tree[path[2:]])
