"""Candidates from the kernels against ``tree/candidates.py``: the same tokens, ties and odd rows included."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    numpy = pytest.importorskip("numpy")
    if tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("the interpreter needs numpy below 2.4", allow_module_level=True)

from jetspec_engine.sglang_backend.kernels.top_candidates import (  # noqa: E402
    CHUNK,
    ChunkResults,
    best_of_all,
    best_of_chunks,
)
from jetspec_engine.tree.candidates import top_candidates  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def kernels(logits, width, cut=None):
    """Return ids and log-probabilities; with a cut, of a vocabulary that two ranks hold."""
    rows = len(logits)
    parts = [logits] if cut is None else [logits[:, :cut], logits[:, cut:]]
    results = []
    for first_id, part in zip((0, cut), parts, strict=False):
        into = ChunkResults.allocate(rows=rows, vocab_size=part.shape[1], width=width, device=DEVICE)
        results.append(best_of_chunks(part, into=into, first_id=first_id))
    joined = ChunkResults(
        **{name: torch.cat([getattr(one, name) for one in results], dim=1) for name in ("keys", "tops", "sums")}
    )
    tokens = torch.full((rows, width), -3, device=DEVICE)
    logprobs = torch.full((rows, width), math.nan, device=DEVICE)
    best_of_all(joined, tokens=tokens, logprobs=logprobs)
    return tokens.cpu(), logprobs.cpu()


@pytest.mark.parametrize("cut", [None, CHUNK, 1000], ids=["whole", "ranks", "uneven-ranks"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 8])
def test_case_15_the_same_tokens_in_the_same_order(width, dtype, cut):
    made = torch.Generator().manual_seed(0)
    logits = (torch.randn(11, 2 * CHUNK + 77, generator=made) * 3).to(dtype)
    logits.scatter_(1, torch.randint(0, logits.shape[1], (11, 30), generator=made), 20.0)
    logits[1, 5], logits[2, CHUNK + 5], logits[3, 5] = math.nan, math.inf, -math.inf
    logits[4] = -math.inf
    logits[5] = -math.inf
    logits[5, [3, CHUNK + 9]] = 1.0
    logits[6] = -7.0  # all equal
    logits[7] = -1.0
    logits[7, 9], logits[7, CHUNK + 1] = -0.0, 0.0
    expected = top_candidates(logits, width)
    tokens, logprobs = kernels(logits.to(DEVICE), width, cut)
    assert torch.equal(tokens, expected.tokens)
    torch.testing.assert_close(logprobs, expected.logprobs, rtol=0, atol=1e-5)


def test_a_width_above_the_vocabulary_leaves_empty_places():
    logits = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    expected = top_candidates(logits, 8)
    tokens, logprobs = kernels(logits.to(DEVICE), 8)
    assert torch.equal(tokens, expected.tokens)
    torch.testing.assert_close(logprobs, expected.logprobs, rtol=0, atol=1e-5)


def test_a_strided_batch_is_read_where_it_lies():
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(2))
    tokens, _ = kernels(logits.to(DEVICE)[::2], 4)
    assert torch.equal(tokens, top_candidates(logits[::2], 4).tokens)
