"""Bitwise: SGLang's own unified extend kernel, fed one node a sequence, gives a tree's nodes the bits of a chain.

It is the measure of our own kernel (``kernels/test_verify_attention.py``), which has the property at a chain's cost. On
a GPU the kernel is compiled, elsewhere Triton interprets it; what the interpreter proves is the order of the sums, not
what a compiler makes of it.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    # Triton's interpreter reads scalars in a way that numpy 2.4 refuses.
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from jetspec_engine.sglang_backend.node_paths import node_paths  # noqa: E402
from jetspec_engine.tree.batched import build_best_first_batched  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, KV_HEADS, WIDTH, SCALE, DEPTH, SLOTS = 6, 2, 64, 0.125, 6, 400
KEY_BLOCK = 64  # of that kernel
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
        self.path = node_paths(self.trees, DEPTH)[0]

    def path_of(self, node):
        """Return the slots of a node's ancestors and its own."""
        return self.own[self.path[node, : int(self.trees.depths[0, node]) + 1]]

    def deepest(self):
        """Return the deepest node and its ancestors, from the root on."""
        at, path = int(self.trees.depths[0].argmax()), []
        while at >= 0:
            path.insert(0, at)
            at = int(self.trees.parents[0, at])
        return path


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
