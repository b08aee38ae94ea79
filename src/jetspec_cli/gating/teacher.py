"""The teacher-forced check: every emitted token is the target's argmax given its prefix, in one forward (R52).

It goes on after the first difference from an oracle, and needs no oracle at all.
"""

from collections.abc import Sequence
from typing import Any

from jetspec_cli.gating.ulp import gap_in_ulp, is_near_tie
from jetspec_cli.serving.client import Score, ServerClient


def find_wrong_tokens(
    client: ServerClient, prompt_ids: Sequence[int], emitted: Sequence[int]
) -> list[dict[str, Any]] | None:
    """Score emitted tokens and return those that are not the argmax.

    Args:
        client: the server whose target decides.
        prompt_ids: the prompt, at least one token.
        emitted: what was decoded after it.

    Returns:
        One report a wrong token, in order (empty when all are right); None when the server cannot score.
        Ties go to the lower id, so the argmax is unique.
    """
    if not emitted:
        return []
    answer = client.score([*prompt_ids, *emitted], len(prompt_ids), 2)
    if answer is None:
        return None
    dtype, scores = answer
    return [_report(dtype, score, len(prompt_ids)) for score in scores if score.top[0][0] != score.token_id]


def _report(dtype: str, score: Score, num_prompt_tokens: int) -> dict[str, Any]:
    best_id, best_logit, best_logprob = score.top[0]
    gap_ulp = gap_in_ulp(dtype, (best_logit, score.logit))
    return {
        "position": score.position - num_prompt_tokens,
        "token_id": score.token_id,
        "argmax": best_id,
        "gap_nats": best_logprob - score.logprob,
        "gap_ulp": gap_ulp,
        "is_near_tie": is_near_tie(gap_ulp),
    }
