"""The accept walk and the move of accepted rows against their torch twins."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from jetspec_engine.sglang_backend.kernels.accept_walk import accept_walk  # noqa: E402
from jetspec_engine.sglang_backend.kernels.move_rows import CHUNK, RowBuffers, move_accepted  # noqa: E402
from jetspec_engine.sglang_backend.tree_round import Outcome, outcome  # noqa: E402
from jetspec_engine.tree.accept_batched import accept_greedy_batched  # noqa: E402
from jetspec_engine.tree.batched import build_best_first_batched  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REQUESTS, DEPTH, NODES = 6, 7, 24


def new_outcome():
    return Outcome.allocate(requests=REQUESTS, depth=DEPTH, device=DEVICE)


def random_trees(seed):
    """Trees over few tokens, and targets that agree with a child as often as not; some name no token."""
    made = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(5, generator=made)[:4] for _ in range(REQUESTS * DEPTH)])
    trees = build_best_first_batched(
        torch.zeros(REQUESTS, dtype=torch.int64),
        tokens.reshape(REQUESTS, DEPTH, 4),
        torch.randn(REQUESTS, DEPTH, 4, generator=made).log_softmax(-1),
        num_nodes=NODES,
        budget=torch.randint(1, NODES + 1, (REQUESTS,), generator=made),
    )
    targets = torch.randint(-1, 5, (REQUESTS, NODES), generator=made)
    for request in range(REQUESTS):  # one request's targets lead to its last node: zero to full depth
        node = int(trees.num_nodes[request]) - 1
        while seed % 2 and node > 0:
            parent = int(trees.parents[request, node])
            targets[request, parent] = trees.tokens[request, node]
            node = parent
    fields = {name: getattr(trees, name).to(DEVICE) for name in type(trees).__dataclass_fields__}
    return type(trees)(**fields), targets.to(DEVICE)


@pytest.mark.parametrize("seed", range(12))
def test_the_walk_equals_the_batched_one(seed):
    trees, targets = random_trees(seed)
    expected = accept_greedy_batched(trees, targets, DEPTH)
    walked = accept_walk(trees, targets, into=new_outcome())
    found = walked.accepted
    assert torch.equal(found.path, expected.path)
    assert torch.equal(found.num_correct_drafts, expected.num_correct_drafts)
    assert torch.equal(found.bonus, expected.bonus)
    twin = outcome(trees, expected)
    assert torch.equal(walked.tokens, twin.tokens)
    assert torch.equal(walked.lens, twin.lens)
    for row in range(REQUESTS):
        path = expected.path[row, 1 : int(expected.num_correct_drafts[row]) + 1]
        emitted = [*trees.tokens[row, path].tolist(), int(expected.bonus[row])]
        assert walked.tokens[row].tolist() == emitted + [0] * (DEPTH + 1 - len(emitted))
        assert int(walked.lens[row]) == len(emitted)


def test_of_siblings_with_one_token_the_first_counts():
    trees, targets = random_trees(1)
    trees.tokens[:] = 3
    targets[:] = 3
    found = accept_walk(trees, targets, into=new_outcome()).accepted
    expected = accept_greedy_batched(trees, targets, DEPTH)
    assert torch.equal(found.path, expected.path)
    assert int(found.num_correct_drafts.max()) > 0


@pytest.mark.parametrize("seed", range(4))
def test_case_08_moved_rows_stand_where_a_chains_would(seed):
    made = torch.Generator().manual_seed(seed)
    slots = torch.randperm(REQUESTS * NODES + 9, generator=made)[: REQUESTS * NODES].reshape(REQUESTS, NODES).to(DEVICE)
    wide = torch.randn(REQUESTS * NODES + 9, 2, CHUNK + 6, generator=made)  # rows of more than one chunk
    buffers = [
        wide.to(torch.bfloat16).to(DEVICE), torch.randn(REQUESTS * NODES + 9, 3, 64, generator=made).to(DEVICE),
        torch.randn(REQUESTS * NODES + 9, 1, generator=made).to(DEVICE),
        wide[:, :1].to(torch.float16).to(DEVICE).expand(-1, 2, -1).contiguous()[:, :1],  # slots further apart than rows
    ]  # fmt: skip
    paths, counts = [], torch.randint(-1, DEPTH + 1, (REQUESTS,), generator=made)
    for request in range(REQUESTS):
        jumps = torch.randint(1, 3, (DEPTH,), generator=made) if request else torch.ones(DEPTH, dtype=torch.int64)
        paths.append(torch.cat([torch.zeros(1, dtype=torch.int64), jumps.cumsum(0)]))
    path = torch.stack(paths).to(DEVICE)
    expected = [buffer.clone() for buffer in buffers]
    for before, after in zip(buffers, expected, strict=True):
        for request in range(REQUESTS):
            for depth in range(int(counts[request]) + 1):
                after[slots[request, depth]] = before[slots[request, path[request, depth]]]
    move_accepted(RowBuffers.of(buffers), slots, path, counts.to(DEVICE))
    for found, wanted in zip(buffers, expected, strict=True):
        assert torch.equal(found, wanted)


def test_rows_that_are_no_whole_words_are_refused():
    with pytest.raises(ValueError, match="cache buffer 1"):
        RowBuffers.of([torch.zeros(4, 2), torch.zeros(4, 3, dtype=torch.float16)])
