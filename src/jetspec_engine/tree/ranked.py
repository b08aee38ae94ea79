"""Candidates as plain lists, cleaned and put in order: what every CPU builder starts from.

This is where odd input gets its meaning, once: NaN counts as -inf, -inf is never used, a log-probability above 0
counts as 0, and a depth whose candidates are not in order is sorted (equal ones keep the order given). Knows no rule.
"""

import numpy as np

from jetspec_engine.errors import ConfigError
from jetspec_engine.protocol import Candidates


def ranked_candidates(candidates: Candidates, width: int) -> tuple[list[list[int]], list[list[float]]]:
    """Return token ids and log-probabilities per depth, best first, only those that may be used.

    Args:
        candidates: (D, W) ids and log-probabilities, numpy or torch on the CPU.
        width: at most so many are kept per depth.

    Returns:
        Two lists of D lists, each of 0..width entries; the log-probabilities are finite and <= 0, as Python floats.

    Raises:
        ConfigError: the two arrays are not 2-d and of one shape.
    """
    tokens = np.asarray(candidates.tokens)
    logprobs = np.asarray(candidates.logprobs, dtype=np.float64)
    if tokens.ndim != 2 or tokens.shape != logprobs.shape:
        raise ConfigError(
            f"candidates: shapes {tokens.shape} and {logprobs.shape}, expected (D, W) ids and log-probabilities alike"
        )
    if not (logprobs <= 0.0).all():
        logprobs = np.where(np.isnan(logprobs), -np.inf, np.minimum(logprobs, 0.0))
    if (logprobs[:, 1:] > logprobs[:, :-1]).any():
        order = np.argsort(-logprobs, axis=1, kind="stable")
        tokens = np.take_along_axis(tokens, order, axis=1)
        logprobs = np.take_along_axis(logprobs, order, axis=1)
    ids: list[list[int]] = tokens[:, :width].tolist()
    values: list[list[float]] = logprobs[:, :width].tolist()
    for depth, row in enumerate(values):
        if row and row[-1] == -np.inf:
            usable = row.index(-np.inf)
            del row[usable:], ids[depth][usable:]
    return ids, values
