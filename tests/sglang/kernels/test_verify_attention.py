"""Our verify attention: agrees with the float32 reference; a row's bits are its own, however it is verified.

Texts are cut into rounds at random, with random siblings, company and row counts; every row on the text's path must
have the bits it has when verified by itself. On a GPU the kernels are compiled, elsewhere interpreted.
"""

import random
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from jetspec_engine.errors import EngineError  # noqa: E402
from jetspec_engine.sglang_backend.kernels.verify_attention import (  # noqa: E402
    NO_WINDOW,
    Prefix,
    Tiles,
    can_overlap,
    verify_attention,
)
from jetspec_engine.sglang_backend.kernels.verify_scratch import (  # noqa: E402
    VerifyScratch,
    bounds_within,
    split_bounds,
)
from jetspec_engine.sglang_backend.table_attention import table_attention_reference  # noqa: E402

IS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if IS_CUDA else "cpu"
LENGTH, SIBLINGS, PATH = (700, 12, 9) if IS_CUDA else (190, 3, 6)
SHAPES = [(6, 2, 64), (4, 4, 64), (32, 8, 128)] if IS_CUDA else [(3, 1, 16)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16] if IS_CUDA else [torch.float32, torch.float16]
MOST = 1 + (PATH - 1) * SIBLINGS  # nodes of a tree
# Small pieces, so that short texts cross many cuts.
SMALL = None if IS_CUDA else Tiles(block=32, prefix_rows=16, prefix_warps=4, tail_rows=16)


class Text:
    """A text of one request: query, slot, key and value of every token, and of tokens that were not chosen."""

    def __init__(self, seed, shape, dtype):
        heads, kv_heads, width = shape
        made = torch.Generator().manual_seed(seed)

        def normal(*size):
            return torch.randn(*size, generator=made).to(dtype).to(DEVICE)

        self.count = LENGTH + 400
        self.slots = torch.randperm(self.count, generator=made).to(DEVICE)
        self.keys, self.values = normal(self.count, kv_heads, width), normal(self.count, kv_heads, width)
        self.query = normal(self.count, heads, width)
        self.shape, self.scale = shape, width**-0.5
        self.scratch = VerifyScratch.allocate(
            rows=2 * MOST,
            heads=heads,
            width=width,
            max_context=LENGTH + PATH,
            device=DEVICE,
            bounds=split_bounds(LENGTH + PATH, first=64),
        )


def apart(query):
    """The same queries as a slice of wider rows: a projection of queries, keys and values together leaves them so."""
    rows, heads, width = query.shape
    wider = torch.full((rows, (heads + 3) * width), float("nan"), dtype=query.dtype, device=query.device)
    wider[:, : heads * width] = query.reshape(rows, -1)
    return wider[:, : heads * width].view(rows, heads, width)


def verify(text, rounds, window=NO_WINDOW, tiles=SMALL, overlap=None):
    """Verify one tree a request, all of one text.

    Args:
        text: where they come from.
        rounds: (prefix length, tokens as indices into the text, parents) of every request.
        window: keys before itself that a node sees.
        tiles: shapes of the work.
        overlap: start the second kernel early.

    Returns:
        (R, N, H, F), and the float32 reference likewise.
    """
    count = max(len(tokens) for _, tokens, _ in rounds)
    slots, path, depths, queries = [], [], [], []
    for _, tokens, parents in rounds:
        lists = []
        for node, parent in enumerate(parents):
            lists.append((lists[parent] if parent >= 0 else []) + [node])
        lists += [[node] for node in range(len(lists), count)]
        padded = torch.tensor(tokens + [0] * (count - len(tokens)))
        slots.append(text.slots[padded])
        queries.append(text.query[padded])
        depths.append([len(own) - 1 for own in lists])
        path.append([own + [own[-1]] * (PATH - len(own)) for own in lists])
    lengths = torch.tensor([length for length, _, _ in rounds], dtype=torch.int32, device=DEVICE)
    firsts = (lengths - window).clamp(min=0) if window >= 0 else None
    begins = [max(0, length - window) if window >= 0 else 0 for length, _, _ in rounds]
    listed = [text.slots[begin:length] for (length, _, _), begin in zip(rounds, begins, strict=True)]
    starts = torch.tensor([0] + [len(part) for part in listed], device=DEVICE).cumsum(0)[:-1]
    query = apart(torch.cat(queries))
    path = torch.tensor(path, dtype=torch.int32, device=DEVICE)
    depths = torch.tensor(depths, dtype=torch.int64, device=DEVICE)
    out = verify_attention(
        query, text.keys, text.values, out=torch.empty_like(query, memory_format=torch.contiguous_format),
        prefix=Prefix(indices=torch.cat(listed), starts=starts, lengths=lengths, firsts=firsts),
        slots=torch.stack(slots), path=path, depths=depths, scale=text.scale, scratch=text.scratch, window=window,
        tiles=tiles, overlap=overlap,
    )  # fmt: skip
    return out.reshape(len(rounds), count, *query.shape[1:])


def reference(text, length, tokens, parents, window=NO_WINDOW):
    """One tree, node by node, in float32."""
    paths = []
    for node, parent in enumerate(parents):
        paths.append((paths[parent] if parent >= 0 else []) + [node])
    table = torch.cat([text.slots[:length], text.slots[torch.tensor(tokens)]])
    depths = torch.tensor([[len(path) - 1 for path in paths]])
    padded = torch.tensor([[path + [path[-1]] * (PATH - len(path)) for path in paths]])
    return table_attention_reference(
        text.query[torch.tensor(tokens)].unsqueeze(0), text.keys, text.values, table=table.unsqueeze(0),
        prefix_lens=torch.tensor([length]), path=padded.to(DEVICE), depths=depths, scale=text.scale, window=window,
    )[0]  # fmt: skip


def random_round(rng, length):
    """Return a round at this prefix length: the text's next tokens, and others hanging from random nodes."""
    tokens, parents, on_path = [length], [-1], [0]
    depths = [0]
    spare = iter(rng.sample(range(LENGTH + PATH, LENGTH + 400), 300))
    for _ in range(rng.choice((0, 1, PATH - 1))):
        for _ in range(rng.randrange(SIBLINGS)):
            parent = rng.randrange(len(tokens))
            if depths[parent] + 1 < PATH:
                tokens.append(next(spare))
                parents.append(parent)
                depths.append(depths[parent] + 1)
        on_path.append(len(tokens))
        parents.append(on_path[-2])
        tokens.append(length + len(on_path) - 1)
        depths.append(len(on_path) - 1)
    return (length, tokens, parents), on_path


def prefixes(rng, block):
    """Lengths at and around the borders of blocks and cuts, and others."""
    near = [base + shift for base in (block, 2 * block, 4 * block) for shift in (-PATH, -2, -1, 0, 1)]
    others = [rng.randrange(1, LENGTH - PATH) for _ in range(12)]
    if IS_CUDA:
        return [1, *near, *others]
    # Trees that cross a cut, trees that end on one, any.
    return [1, 2 * block - 2, 2 * block - 2, 4 * block - 1, 4 * block, rng.choice(near), others[0]]


@pytest.mark.parametrize("window", [NO_WINDOW, 7, 70], ids=["all", "window-7", "window-70"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_case_13_a_rows_bits_are_its_own_however_it_is_verified(rows_apart, shape, dtype, window):
    text, rng = Text(1, shape, dtype), random.Random(2)
    alone = {}
    for length in prefixes(rng, 32):
        (_, tokens, parents), on_path = random_round(rng, length)
        company, _ = random_round(rng, rng.randrange(1, LENGTH - PATH))
        row_count = max(len(tokens), len(company[1]))
        order = [(length, tokens, parents), company]
        place = rng.randrange(2)
        out = verify(text, order if place == 0 else order[::-1], window)[place]
        assert row_count == out.shape[0]
        for node in on_path:
            at = tokens[node]
            if at not in alone:
                alone[at] = verify(text, [(at, [at], [-1])], window)[0, 0]
            assert torch.equal(out[node], alone[at]), (length, at)


@pytest.mark.skipif(not can_overlap(torch.device(DEVICE)), reason="a kernel cannot start early there")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_starting_the_second_kernel_early_changes_no_bit(dtype):
    text, rng = Text(6, SHAPES[-1], dtype), random.Random(7)
    for length in prefixes(rng, 32):
        one, _ = random_round(rng, length)
        late = verify(text, [one], overlap=False)
        # Many times: what is read too early need not be wrong each time.
        for early in [verify(text, [one], overlap=True) for _ in range(20)]:
            assert torch.equal(early, late), length


@pytest.mark.parametrize("window", [NO_WINDOW, 20], ids=["all", "window-20"])
def test_it_agrees_with_the_reference(window):
    text, rng = Text(3, SHAPES[0], torch.float32), random.Random(4)
    for length in prefixes(rng, 32)[::2]:
        one, _ = random_round(rng, length)
        expected = reference(text, *one, window)
        found = verify(text, [one], window)[0, : len(one[1])]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


def test_cuts_grow_with_their_position_and_end_on_blocks():
    bounds = split_bounds(40_960)
    sizes = [high - low for low, high in pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] >= 40_960 > bounds[-2]
    assert all(size % 128 == 0 and size <= max(128, low // 4) for size, low in zip(sizes, bounds, strict=False))
    assert len(sizes) < 35
    # A longer context moves no cut.
    assert split_bounds(131_072)[: len(bounds)] == bounds


def test_queries_whose_heads_lie_apart_are_refused():
    query = torch.empty(4, 2, 128, dtype=torch.bfloat16)[:, :, :64]
    with pytest.raises(EngineError, match="heads side by side"):
        verify_attention(
            query, query, query, out=query, prefix=None, slots=torch.zeros(1, 4), path=torch.zeros(1, 4, 4),
            depths=torch.zeros(1, 4), scale=1.0, scratch=Text(0, (2, 1, 64), torch.bfloat16).scratch,
        )  # fmt: skip


def test_more_nodes_than_the_scratch_holds_are_refused():
    text = Text(5, SHAPES[0], torch.float32)
    with pytest.raises(EngineError, match="expected at most the scratch's"):
        verify(text, [(1, list(range(1, 2 * MOST + 2)), [-1] * (2 * MOST + 1))])


def test_many_rows_get_coarser_cuts_within_the_memory_they_may_take():
    finest = split_bounds(40_960)
    assert bounds_within(40_960, piece_bytes=1, most_bytes=len(finest)) == finest
    coarser = bounds_within(40_960, piece_bytes=1 << 20, most_bytes=12 << 20)
    assert len(coarser) - 1 <= 12
    assert coarser[-1] >= 40_960
    assert set(coarser[:-1]) <= set(finest)
    assert len(bounds_within(40_960, piece_bytes=1 << 40, most_bytes=1)) == 2
