"""The target's logits where a prompt ends, for telling a near-tie from a fault: rounding is a matter of a logit's size.

SGLang's DFLASH family reports no log-probabilities, so the worker sends these beside a prefill's first token while a
token to score is set. Knows logits only.
"""

from typing import Any

from torch import Tensor

SCORES = "jetspec_scores"
NO_TOKEN = -1
MOST_TOP = 16


def scores_of(logits: Tensor, token: int) -> list[dict[str, Any]]:
    """Return each row's likeliest tokens and one token more.

    Args:
        logits: (R, V) any float dtype. Waits for the device.
        token: the one more.

    Returns:
        A mapping a row: ``token`` and ``top``, entries of (id, logit, log-probability), best first; of equal logits
        the lower id comes first.
    """
    values = logits.float()
    logprobs = values.log_softmax(-1)
    # More than are reported, so that equal ones at the end do not push out a lower id.
    ids = values.topk(min(2 * MOST_TOP, values.shape[1])).indices
    found = []
    for row, likeliest in enumerate(ids.tolist()):
        entries = {one: (one, float(values[row, one]), float(logprobs[row, one])) for one in {*likeliest, token}}
        top = sorted((entries[one] for one in likeliest), key=lambda entry: (-entry[1], entry[0]))
        found.append({"token": entries[token], "top": top[:MOST_TOP]})
    return found
