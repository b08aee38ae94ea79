"""Log-probabilities and teacher forcing: what the target thinks of given tokens.

Knows nothing of requests in flight; scoring runs in a fresh region of its own.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from jetspec_engine.errors import EngineError, RequestError
from jetspec_engine.protocol import SlotRegion, TargetModel, VerifyItem
from jetspec_engine.records import PositionScore, TokenLogprob
from jetspec_engine.tree.record import DraftTree


def top_tokens(logits: Tensor, count: int) -> list[list[int]]:
    """Return each row's ``count`` likeliest ids, best first, ties by lower id.

    Args:
        logits: (N, V) finite, any floating dtype and device.
        count: 0..V.

    Returns:
        N lists of ``count`` ids. Syncs with the host.
    """
    if count == 0:
        return [[] for _ in range(len(logits))]
    # topk leaves open which of several equal values it returns: take all that equal the last one, then order them.
    least = logits.topk(count, dim=-1).values[:, -1:]
    found: list[list[tuple[float, int]]] = [[] for _ in range(len(logits))]
    rows, ids = (logits >= least).nonzero(as_tuple=True)
    for row, token_id, logit in zip(rows.tolist(), ids.tolist(), logits[rows, ids].tolist(), strict=True):
        found[row].append((-logit, token_id))
    return [[token_id for _, token_id in sorted(pairs)[:count]] for pairs in found]


def token_logprobs(logits: Tensor, token_ids: Sequence[int], top_k: int) -> list[TokenLogprob]:
    """Return the logprob of one token a row, and of the row's ``top_k`` likeliest.

    Args:
        logits: (N, V).
        token_ids: N ids.
        top_k: candidates a row.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    tops = top_tokens(logits, top_k)
    return [
        TokenLogprob(token_id=token, logprob=float(row[token]), top=tuple((i, float(row[i])) for i in top))
        for token, row, top in zip(token_ids, logprobs, tops, strict=True)
    ]


def check_positions(start: int, top_k: int, num_ids: int, vocab_size: int) -> None:
    """Raise RequestError unless positions ``start`` on of ``num_ids`` ids can be scored with ``top_k`` candidates."""
    if not 1 <= start < num_ids:
        raise RequestError(f"start: {start}, expected 1..{num_ids - 1} for {num_ids} ids")
    if not 0 <= top_k <= vocab_size:
        raise RequestError(f"top_k: {top_k}, expected 0..{vocab_size}")


def score_tokens(
    target: TargetModel, region: SlotRegion, input_ids: Sequence[int], start: int, top_k: int, *, chunk: int
) -> list[PositionScore]:
    """Teacher-force ids through the target and report positions ``start`` on.

    Args:
        target: the target.
        region: at least ``len(input_ids)`` free slots; its content is overwritten.
        input_ids: T ids.
        start: first position to report, 1..T - 1.
        top_k: candidates a position.
        chunk: most rows a forward.

    Raises:
        EngineError: a position's logits are not finite.
    """
    scores: list[PositionScore] = []
    # The last id predicts nothing that is asked for.
    for begin in range(0, len(input_ids) - 1, chunk):
        ids = input_ids[begin : min(begin + chunk, len(input_ids) - 1)]
        wanted = min(max(start - 1 - begin, 0), len(ids))
        item = VerifyItem(region=region, length=begin, tree=DraftTree.chain(ids), logits_from=wanted)
        (result,) = target.verify((item,))
        target.commit(region, begin, range(len(ids)))
        if wanted < len(ids):
            scores.extend(_score_rows(result.logits, input_ids, begin + wanted + 1, top_k))
    return scores


def _score_rows(logits: Tensor, input_ids: Sequence[int], first: int, top_k: int) -> list[PositionScore]:
    """Score positions ``first`` on, each from the logits row of the position before it."""
    is_finite = torch.isfinite(logits.amax(dim=-1))
    if not bool(is_finite.all()):
        bad = first + int((~is_finite).nonzero()[0, 0])
        raise EngineError(f"score: position {bad}: the target's logits are not finite")
    values = logits.float()
    logprobs = torch.log_softmax(values, dim=-1)
    scores = []
    for row, top in enumerate(top_tokens(logits, top_k)):
        token = input_ids[first + row]
        scores.append(
            PositionScore(
                position=first + row,
                token_id=token,
                logit=float(values[row, token]),
                logprob=float(logprobs[row, token]),
                top=tuple((i, float(values[row, i]), float(logprobs[row, i])) for i in top),
            )
        )
    return scores
