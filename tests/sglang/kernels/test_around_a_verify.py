"""What a round launches around its forwards against torch twins: block, batch taken over, acceptance by decree."""

from dataclasses import fields

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from jetspec_engine.config import LINEAR, TreeConfig  # noqa: E402
from jetspec_engine.sglang_backend import round_block  # noqa: E402
from jetspec_engine.sglang_backend.kernels import draft_block  # noqa: E402
from jetspec_engine.sglang_backend.round_state import RoundShape, RoundState  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DEPTH, WIDTH, ROW_WIDTH, REQUESTS = 7, 4, 1500, 5
ROWS = (5, 8, 24)
LENGTHS = (0, 3, 1023, 1024, 1400)


def random_table(seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randint(1, 9999, (REQUESTS + 3, ROW_WIDTH), generator=made, dtype=torch.int32).to(DEVICE)


def state(has_kernels):
    shape = RoundShape(
        requests=REQUESTS, rows=ROWS, depth=DEPTH, width=WIDTH, row_width=ROW_WIDTH, heads=1, head_width=16
    )
    return RoundState(shape, DEVICE, has_kernels=has_kernels)


def drafted(has_kernels, count, tree, seed=1):
    """A state with trees of ``count`` requests."""
    made = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(9, generator=made)[:WIDTH] for _ in range(count * DEPTH)])
    logprobs = torch.randn(count, DEPTH, WIDTH, generator=made).log_softmax(-1).sort(-1, descending=True).values
    one = state(has_kernels)
    one.set_tree(tree)
    one.build(torch.arange(count, device=DEVICE), tokens.view(count, DEPTH, WIDTH).to(DEVICE), logprobs.to(DEVICE))
    return one


@pytest.mark.parametrize("nodes", [8, 24, 40])
def test_the_block_equals_its_twin(nodes):
    table, count = random_table(), 4
    given = (
        torch.tensor([7, 8, 9, 10], device=DEVICE), torch.tensor(LENGTHS[:count], device=DEVICE),
        torch.tensor([6, 0, 3, 2], device=DEVICE), table,
    )  # fmt: skip
    sizes = {"block": DEPTH + 1, "nodes": nodes, "mask_id": 255}
    found, expected = draft_block.lay_block(*given, **sizes), round_block.lay_block(*given, **sizes)
    for item in fields(expected):
        ours, theirs = getattr(found, item.name), getattr(expected, item.name)
        assert ours.is_contiguous()
        assert torch.equal(ours, theirs), item.name
    assert found.ids[1].tolist() == [8] + [255] * DEPTH
    assert found.node_slots[2].tolist() == table[3, 1023 : 1023 + nodes].tolist()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("is_linear", [False, True])
def test_a_batch_taken_over_equals_its_twin(rows, is_linear):
    """A frame of the budget's own size, a smaller one, and a chain in it; slots behind a prefix are nobody's."""
    if is_linear and rows < DEPTH + 1:
        pytest.skip("a chain needs its rows")
    table, count = random_table(), len(LENGTHS)
    requests = torch.tensor([6, 0, 3, 2, 7], device=DEVICE)
    lengths = torch.tensor(LENGTHS, device=DEVICE)
    states = [drafted(has_kernels, count, TreeConfig(width=WIDTH, budget=5)) for has_kernels in (True, False)]
    for each in states:
        if is_linear:
            each.set_tree(LINEAR)
        each.stage(table, requests, lengths, rows)
    ours, theirs = (each._frames[rows] for each in states)
    names = ["depths"] if is_linear else ["tokens", "parents", "depths", "is_valid"]
    chain = DEPTH + 1 if is_linear else rows
    for name in names:
        assert torch.equal(getattr(ours.trees, name)[:, :chain], getattr(theirs.trees, name)[:, :chain]), name
    assert torch.equal(ours.path[:, :chain], theirs.path[:, :chain])
    assert torch.equal(states[0].prefix_lens, lengths)
    for request, length in enumerate(LENGTHS):
        assert torch.equal(states[0]._table[request, :length], table[int(requests[request]), :length])


@pytest.mark.parametrize("num_drafts", [0, 1, 4, DEPTH])
@pytest.mark.parametrize("budget", [1, 5, 24])
def test_acceptance_by_decree_equals_its_twin(num_drafts, budget):
    count = 3
    made = torch.Generator().manual_seed(3)
    targets = torch.randint(0, 50, (count, ROWS[-1]), generator=made).to(DEVICE)
    outcomes = []
    for has_kernels in (True, False):
        each = drafted(has_kernels, count, TreeConfig(width=WIDTH, budget=budget))
        outcomes.append(each.accept_by_decree(targets, num_drafts))
    ours, theirs = outcomes
    for name in ("path", "num_correct_drafts", "bonus"):
        assert torch.equal(getattr(ours.accepted, name), getattr(theirs.accepted, name)), name
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.lens, theirs.lens)
    if budget == 1:
        assert ours.lens.tolist() == [1] * count
