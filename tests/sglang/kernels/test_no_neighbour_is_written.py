"""Case 9 in the kernels: a round of 128 nodes at depth 15, its paths far shorter than its rows, is in its buffers."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from jetspec_engine.config import TreeConfig  # noqa: E402
from jetspec_engine.sglang_backend.kernels.accept_walk import accept_walk  # noqa: E402
from jetspec_engine.sglang_backend.kernels.build_trees import build_trees  # noqa: E402
from jetspec_engine.sglang_backend.kernels.forced_walk import forced_walk  # noqa: E402
from jetspec_engine.sglang_backend.kernels.move_rows import RowBuffers, move_accepted  # noqa: E402
from jetspec_engine.sglang_backend.kernels.stage_batch import stage_batch  # noqa: E402
from jetspec_engine.sglang_backend.kernels.tree_buffers import TreeBuffers  # noqa: E402
from jetspec_engine.sglang_backend.kernels.verify_attention import Prefix, verify_attention  # noqa: E402
from jetspec_engine.sglang_backend.kernels.verify_scratch import VerifyScratch, split_bounds  # noqa: E402
from jetspec_engine.sglang_backend.tree_round import Outcome  # noqa: E402
from support.guards import Guards  # noqa: E402
from support.tree_cases import random_candidates  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REQUESTS = 3 if DEVICE == "cuda" else 1
NODES, DEPTH, WIDTH = 128, 15, 8
HEADS, KV_HEADS, HEAD_DIM, PREFIX = 4, 2, 64, 40
SLOTS = REQUESTS * (PREFIX + NODES)


@pytest.fixture
def guards():
    made = Guards()
    yield made
    made.assert_whole()


def built(guards):
    """Return guarded trees that fill their budget."""
    candidates = [random_candidates(seed) for seed in range(REQUESTS)]
    into = TreeBuffers.allocate(requests=REQUESTS, nodes=NODES, depth=DEPTH, width=WIDTH, device=DEVICE)
    into = guards.around(into)
    into.write_settings(TreeConfig(width=WIDTH, budget=NODES))
    tokens, logprobs = (
        torch.stack([torch.as_tensor(getattr(one, name)) for one in candidates]).to(DEVICE)
        for name in ("tokens", "logprobs")
    )
    lengths = torch.full((REQUESTS,), PREFIX, dtype=torch.int32, device=DEVICE)
    build_trees(torch.arange(REQUESTS, device=DEVICE), tokens, logprobs, lengths=lengths, into=into)
    assert into.trees.num_nodes.tolist() == [NODES] * REQUESTS
    return into


def to_the_last_node(trees):
    """Return targets under which each walk ends at its tree's last node."""
    targets = torch.zeros(REQUESTS, NODES, dtype=torch.int64)
    for row in range(REQUESTS):
        node = NODES - 1
        while node > 0:
            parent = int(trees.parents[row, node])
            targets[row, parent] = trees.tokens[row, node]
            node = parent
    return targets.to(DEVICE)


def test_case_09_building_walking_and_moving_write_no_neighbour(guards):
    into = built(guards)
    outcome = guards.around(Outcome.allocate(requests=REQUESTS, depth=DEPTH, device=DEVICE))
    accept_walk(into.trees, guards.around(to_the_last_node(into.trees)), into=outcome)
    accepted = outcome.accepted
    counts = accepted.num_correct_drafts.tolist()
    assert all(0 < count < NODES - 1 for count in counts)
    rows = guards.around(torch.randn(SLOTS, KV_HEADS, HEAD_DIM, device=DEVICE))
    before = rows.clone()
    slots = torch.arange(REQUESTS * NODES, device=DEVICE).reshape(REQUESTS, NODES) + REQUESTS * PREFIX
    move_accepted(RowBuffers.of([rows]), slots, accepted.path, accepted.num_correct_drafts)
    changed = (rows != before).any(-1).any(-1).nonzero().flatten().tolist()
    allowed = {int(slots[row, depth]) for row in range(REQUESTS) for depth in range(1, counts[row] + 1)}
    assert changed
    assert set(changed) <= allowed


def test_case_09_taking_a_batch_over_and_forcing_its_acceptance_write_no_neighbour(guards):
    into, small, chain = built(guards), 16, DEPTH + 1
    table = torch.arange(REQUESTS * SLOTS, dtype=torch.int32, device=DEVICE).view(REQUESTS, SLOTS)
    rows, lengths = torch.arange(REQUESTS, device=DEVICE), torch.full((REQUESTS,), PREFIX, device=DEVICE)
    slots = guards.around(torch.zeros(REQUESTS, PREFIX, dtype=torch.int32, device=DEVICE))
    lens = guards.around(torch.zeros(REQUESTS, dtype=torch.int64, device=DEVICE))
    frame = guards.around(TreeBuffers.allocate(requests=REQUESTS, nodes=small, depth=DEPTH, width=WIDTH, device=DEVICE))
    for nodes in (None, chain):
        stage_batch(table, rows, lengths, slots=slots, lens=lens, source=into, frame=frame, chain=nodes)
    assert torch.equal(slots, table[:, :PREFIX])
    outcome = guards.around(Outcome.allocate(requests=REQUESTS, depth=DEPTH, device=DEVICE))
    forced_walk(into.trees, into.path, to_the_last_node(into.trees), DEPTH, into=outcome)
    assert all(0 < count <= DEPTH for count in outcome.accepted.num_correct_drafts.tolist())


def test_case_09_verifying_writes_its_rows_and_no_neighbour(guards):
    into = built(guards)
    made = torch.Generator().manual_seed(0)
    keys, values = (guards.around(torch.randn(SLOTS, KV_HEADS, HEAD_DIM, generator=made).to(DEVICE)) for _ in range(2))
    query = torch.randn(REQUESTS * NODES, HEADS, HEAD_DIM, generator=made).to(DEVICE)
    out = guards.around(torch.full_like(query, float("nan")))
    scratch = VerifyScratch.allocate(
        rows=REQUESTS * NODES, heads=HEADS, width=HEAD_DIM, max_context=PREFIX + DEPTH + 1, device=DEVICE,
        bounds=split_bounds(PREFIX + DEPTH + 1),
    )  # fmt: skip
    lengths = torch.full((REQUESTS,), PREFIX, dtype=torch.int32, device=DEVICE)
    prefix = Prefix(
        indices=torch.arange(REQUESTS * PREFIX, device=DEVICE), starts=torch.arange(REQUESTS, device=DEVICE) * PREFIX,
        lengths=lengths, firsts=None,
    )  # fmt: skip
    slots = torch.arange(REQUESTS * NODES, device=DEVICE).reshape(REQUESTS, NODES) + REQUESTS * PREFIX
    verify_attention(
        query, keys, values, out=out, prefix=prefix, slots=slots, path=into.path, depths=into.trees.depths,
        scale=HEAD_DIM**-0.5, scratch=guards.around(scratch),
    )  # fmt: skip
    assert torch.isfinite(out).all()
