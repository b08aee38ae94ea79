"""The state kernels of a verify: against their torch twins, against SGLang's own chain, and bit by bit against chains.

Case 16: with siblings at one depth, each state comes from its parent. On a GPU the kernels are compiled, elsewhere
Triton interprets them.
"""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from jetspec_engine.sglang_backend.kernels.path_conv import convolve_paths  # noqa: E402
from jetspec_engine.sglang_backend.kernels.path_delta import DeltaShape, delta_paths  # noqa: E402
from jetspec_engine.sglang_backend.kernels.path_plan import plan_paths  # noqa: E402
from jetspec_engine.sglang_backend.node_paths import node_paths  # noqa: E402
from jetspec_engine.sglang_backend.recurrent.reference import (  # noqa: E402
    convolve_paths_reference,
    delta_paths_reference,
    plan_paths_reference,
)
from jetspec_engine.tree.batched import build_best_first_batched  # noqa: E402
from support.guards import Guards  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TAPS, DEPTH, SLOTS = 4, 5, 6
SHAPE = DeltaShape(key_heads=1, key_width=16, value_heads=2, value_width=16)
HEADS, WIDTHS = (SHAPE.key_heads, SHAPE.value_heads), (SHAPE.key_width, SHAPE.value_width)
FEATURES = 2 * HEADS[0] * WIDTHS[0] + HEADS[1] * WIDTHS[1]
# The interpreter takes a second a node.
TREES = [(1, 6), (2, 7), (3, 12), (4, 16), (7, 64)] if DEVICE == "cuda" else [(2, 7), (4, 9)]


class Scene:
    """A layer, its committed states and the inputs of R trees of N nodes, all from one seed."""

    def __init__(self, seed, nodes, requests=3, dtype=torch.float32, state_dtype=torch.float32):
        made = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=made).to(dtype).to(DEVICE)

        tokens = torch.randint(0, 99, (requests, DEPTH, 4), generator=made)
        logprobs = torch.randn(requests, DEPTH, 4, generator=made).log_softmax(-1)
        budget = torch.tensor([nodes, max(1, nodes // 2), nodes][:requests])
        trees = build_best_first_batched(
            torch.zeros(requests, dtype=torch.int64), tokens, logprobs, num_nodes=nodes, budget=budget
        )
        self.trees, self.nodes, self.requests = trees, nodes, requests
        self.path, self.depths = node_paths(trees, DEPTH).int().contiguous().to(DEVICE), trees.depths.to(DEVICE)
        self.slots = torch.randperm(SLOTS, generator=made)[:requests].int().to(DEVICE)
        self.mixed, self.a, self.b = (
            normal(requests * nodes, FEATURES),
            normal(requests * nodes, HEADS[1]),
            normal(requests * nodes, HEADS[1]),
        )
        self.weight, self.bias = normal(FEATURES, TAPS), normal(FEATURES)
        self.conv = normal(SLOTS, FEATURES, TAPS - 1).to(state_dtype)
        self.memory = normal(SLOTS, HEADS[1], WIDTHS[1], WIDTHS[0]).to(state_dtype)
        self.scale, self.dt = normal(HEADS[1]), normal(HEADS[1])

    def kept(self):
        conv = self.conv.new_full((self.requests + 1, self.nodes, FEATURES, TAPS - 1), float("nan"))
        memory = self.memory.new_full((self.requests + 1, self.nodes, *self.memory.shape[1:]), float("nan"))
        return conv, memory

    def run(self):
        """Return the kernels' convolved inputs, reads and kept states."""
        guards = Guards()
        kept_conv, kept_memory = (guards.around(each) for each in self.kept())
        where = {"slots": self.slots, "path": self.path, "depths": self.depths}
        begins = guards.around(torch.full_like(self.depths, 7, dtype=torch.int32))
        plan_paths(self.path, self.depths, into=begins)
        mixed = convolve_paths(
            self.mixed, self.weight, self.bias, state=self.conv, kept=kept_conv, has_silu=True,
            out=torch.empty_like(self.mixed), **where,
        )  # fmt: skip
        out = guards.around(self.mixed.new_full((len(mixed), HEADS[1], WIDTHS[1]), float("nan")))
        delta_paths(
            mixed, self.a, self.b, self.scale, self.dt, shape=SHAPE, state=self.memory, begins=begins,
            kept=kept_memory, out=out, **where,
        )  # fmt: skip
        guards.assert_whole()
        return mixed, out, kept_conv, kept_memory

    def is_real(self):
        return (self.trees.is_valid.to(DEVICE) & (self.slots >= 0).unsqueeze(1)).view(-1)


@pytest.mark.parametrize(("seed", "nodes"), TREES)
def test_the_plan_keeps_every_node_once(seed, nodes):
    scene = Scene(seed, nodes)
    begins = torch.full_like(scene.depths, 7, dtype=torch.int32)
    plan_paths(scene.path, scene.depths, into=begins)
    assert torch.equal(begins, plan_paths_reference(scene.path, scene.depths))
    for request in range(scene.requests):
        keepers = [
            int(node)
            for leaf in range(nodes)
            if (begin := int(begins[request, leaf])) >= 0
            for node in scene.path[request, leaf, begin : int(scene.depths[request, leaf]) + 1]
        ]
        assert sorted(keepers) == torch.nonzero(scene.trees.is_valid[request]).view(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("seed", "nodes"), TREES)
def test_case16_each_state_comes_from_its_parent(seed, nodes, dtype):
    scene = Scene(seed, nodes, dtype=dtype)
    mixed, out, kept_conv, kept_memory = scene.run()
    twin_conv, twin_memory = scene.kept()
    where = {"slots": scene.slots, "path": scene.path, "depths": scene.depths}
    expected = convolve_paths_reference(
        scene.mixed, scene.weight, scene.bias, state=scene.conv, kept=twin_conv, has_silu=True, **where
    )
    real = scene.is_real()
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(mixed[real], expected[real], **tolerance)
    read = delta_paths_reference(
        mixed, scene.a, scene.b, scene.scale, scene.dt, heads=HEADS, widths=WIDTHS, state=scene.memory,
        kept=twin_memory, **where,
    )  # fmt: skip
    torch.testing.assert_close(out[real], read[real], **tolerance)
    assert not out.isnan().any()
    real = scene.trees.is_valid.to(DEVICE)
    assert kept_memory[:-1][~real].isnan().all()
    assert kept_memory[-1].isnan().all()
    torch.testing.assert_close(kept_conv[:-1][real], twin_conv[:-1][real], rtol=0, atol=0)
    torch.testing.assert_close(kept_memory[:-1][real], twin_memory[:-1][real], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("seed", "nodes"), TREES)
def test_R12_a_nodes_bits_are_those_of_its_path_as_chains_cut_anywhere(seed, nodes, dtype, state_dtype):
    """The invariant: the same tokens in other rounds, alone and without siblings, give the same bits."""
    scene = Scene(seed, nodes, dtype=dtype, state_dtype=state_dtype)
    mixed, out, kept_conv, kept_memory = scene.run()
    rng = random.Random(seed)
    for request in range(scene.requests):
        leaf = int(scene.depths[request].argmax())
        walked = scene.path[request, leaf, : int(scene.depths[request, leaf]) + 1].long()
        rows = request * nodes + walked
        cut = rng.randrange(1, len(walked)) if len(walked) > 1 else 1
        chain = Scene(seed, nodes, dtype=dtype, state_dtype=state_dtype)
        chain.slots = scene.slots[request : request + 1]
        for part in (rows[:cut], rows[cut:]):
            if len(part) == 0:
                continue
            count = len(part)
            chain.requests, chain.nodes = 1, count
            chain.mixed, chain.a, chain.b = scene.mixed[part], scene.a[part], scene.b[part]
            steps = torch.arange(count, device=DEVICE)
            chain.depths = steps.unsqueeze(0).contiguous()
            chain.path = torch.minimum(steps, steps.unsqueeze(1)).int().unsqueeze(0).contiguous()
            got = chain.run()
            assert torch.equal(got[0], mixed[part])
            assert torch.equal(got[1], out[part])
            slot = int(chain.slots[0])
            chain.conv[slot], chain.memory[slot] = got[2][0, count - 1], got[3][0, count - 1]
        assert torch.equal(chain.conv[slot], kept_conv[request, leaf])
        assert torch.equal(chain.memory[slot], kept_memory[request, leaf])


def test_padded_requests_touch_nothing():
    scene = Scene(5, 9)
    scene.slots[1] = -1
    mixed, out, kept_conv, kept_memory = scene.run()
    assert torch.equal(mixed.view(3, 9, -1)[1], torch.zeros(9, FEATURES, device=DEVICE))
    assert kept_conv[1].isnan().all()
    assert kept_memory[1].isnan().all()
    alone = Scene(5, 9).run()
    assert torch.equal(alone[1].view(3, -1)[[0, 2]], out.view(3, -1)[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chain_agrees_with_sglangs_own_kernels(plugged, dtype):
    """SGLang's chain verify: the recurrence in another tiling, so equal within rounding; the windows exactly."""
    from sglang.kernels.ops.attention.fla.fused_sigmoid_gating_recurrent import fused_sigmoid_gating_delta_rule_update
    from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_update

    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter does not multiply in bfloat16, as SGLang's kernel does")
    scene, count = Scene(6, DEPTH + 1, dtype=dtype), DEPTH + 1
    steps = torch.arange(count, device=DEVICE)
    scene.depths = steps.expand(3, -1).contiguous()
    scene.path = torch.minimum(steps, steps.unsqueeze(1)).int().expand(3, -1, -1).contiguous()
    mixed, out, kept_conv, kept_memory = scene.run()
    stock_conv, stock_memory = scene.kept()
    requests = torch.arange(3, dtype=torch.int32, device=DEVICE)
    conv_state = scene.conv.clone()
    theirs = causal_conv1d_update(
        scene.mixed.view(3, count, -1).transpose(1, 2), conv_state, scene.weight, scene.bias, "silu",
        conv_state_indices=scene.slots, intermediate_conv_window=stock_conv, intermediate_state_indices=requests,
    )  # fmt: skip
    theirs = theirs.transpose(1, 2).reshape(3 * count, -1)
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(mixed, theirs, **tolerance)
    assert torch.equal(kept_conv[:-1], stock_conv[:-1])
    q, k, v = mixed.split([HEADS[0] * WIDTHS[0]] * 2 + [HEADS[1] * WIDTHS[1]], dim=-1)
    read = fused_sigmoid_gating_delta_rule_update(
        A_log=scene.scale, dt_bias=scene.dt, q=q.reshape(1, -1, HEADS[0], WIDTHS[0]).contiguous(),
        k=k.reshape(1, -1, HEADS[0], WIDTHS[0]).contiguous(), v=v.reshape(1, -1, HEADS[1], WIDTHS[1]).contiguous(),
        a=scene.a, b=scene.b, initial_state_source=scene.memory, initial_state_indices=scene.slots,
        cu_seqlens=torch.arange(0, 3 * count + 1, count, dtype=torch.int32, device=DEVICE),
        use_qk_l2norm_in_kernel=True, softplus_beta=1.0, softplus_threshold=20.0, is_kda=False,
        disable_state_update=True, intermediate_states_buffer=stock_memory, intermediate_state_indices=requests,
        cache_steps=count,
    )  # fmt: skip
    torch.testing.assert_close(out, read.view_as(out), **tolerance)
    torch.testing.assert_close(kept_memory[:-1], stock_memory[:-1], rtol=1e-4, atol=1e-4)
