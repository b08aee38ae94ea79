"""The report on a mismatch: what both sides saw where they parted, and whether it is logic or a near-tie.

Asks the servers for teacher-forced logits and for the rounds of the run; says what it could not find out.
"""

import math
from collections.abc import Sequence
from typing import Any

from jetspec_cli.gating.compare import Difference
from jetspec_cli.gating.ulp import gap_in_ulp, is_near_tie, ulp
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import Score, ServerClient
from jetspec_cli.serving.generation import Generation
from jetspec_engine.errors import JetspecError

TOP_K = 5
LOGIC = "logic"
NEAR = "near_tie"
UNCLASSIFIED = "unclassified"


def bare(difference: Difference) -> dict[str, Any]:
    """Return a report's first part, known without asking anyone: position and both sides' tokens."""
    return {
        "unit": difference.unit,
        "position": difference.position,
        "oracle": _token(difference.oracle),
        "candidate": _token(difference.candidate),
        "verdict": UNCLASSIFIED,
    }


def add_texts(report: dict[str, Any], oracle: ServerClient, candidate: ServerClient) -> None:
    """Add the texts of both sides' tokens to a report, which is mutated."""
    for side, client in (("oracle", oracle), ("candidate", candidate)):
        if report[side]["token_id"] is not None:
            report[side]["text"] = client.detokenize([report[side]["token_id"]])


def classify(
    report: dict[str, Any], prompt: Prompt, generation: Generation, oracle: ServerClient, candidate: ServerClient
) -> None:
    """Add both sides' logits, the gap and the verdict to a report.

    A near-tie is a gap of at most 2 ULP between the target's best token and the worse of the two that were emitted,
    given the common prefix. A side that had ended, or other texts for the same ids, cannot be a matter of rounding.

    Args:
        report: from ``bare``; mutated.
        prompt: what was decoded.
        generation: the oracle's answer, for the common prefix.
    """
    if report["unit"] != "token_ids":
        return
    tokens = [report[side]["token_id"] for side in ("oracle", "candidate")]
    if None in tokens:
        report["verdict"] = LOGIC
        return
    prefix = list(generation.token_ids or ())[: report["position"]]
    found = {}
    for name, client in (("oracle", oracle), ("candidate", candidate)):
        if name == "candidate" and client is oracle:
            continue
        side = _logits(client, prompt, prefix, tokens)
        if side is not None:
            found[name] = side
    if not found:
        return
    report["logits"] = found
    worst = max(found.values(), key=lambda side: float(side["gap_ulp"]))
    report.update({key: worst[key] for key in ("dtype", "ulp", "gap_nats", "gap_ulp")})
    report["verdict"] = NEAR if is_near_tie(worst["gap_ulp"]) else LOGIC


def locate(report: dict[str, Any], prompt: Prompt, generation: Generation, cap: int, candidate: ServerClient) -> None:
    """Decode the candidate again as a stream and add the round in which it parted from the oracle.

    The server has to be switched to the candidate's tree and its cache flushed by the caller.

    Args:
        report: from ``bare``; mutated.
        generation: the candidate's answer, to see whether it repeats itself.
        cap: the run's max_new_tokens.
    """
    if candidate.kind != "jetspec" or report["unit"] != "token_ids":
        return
    try:
        ids, counts = candidate.tokens_per_round(prompt, cap)
    except JetspecError as error:
        report["replay"] = f"failed: {error.what}"
        return
    is_same = ids == generation.token_ids
    report["replay"] = "same tokens" if is_same else "other tokens: the candidate does not repeat itself"
    if is_same and counts is not None:
        report["round"] = round_of(report["position"], counts)


def round_of(position: int, counts: Sequence[int]) -> dict[str, Any] | None:
    """Return which round emitted a position.

    Args:
        position: index into the emitted tokens.
        counts: tokens emitted a round; round 0 is the prefill's.

    Returns:
        The round, the token's depth below the root (1 = first draft), the tokens of that round, and whether the
        token was a draft or the bonus (the last of its round, unless a stop or the cap cut the round); None past the
        end.
    """
    before = 0
    for index, count in enumerate(counts):
        if position < before + count:
            depth = position - before + 1
            if index == 0:
                source = "prefill"
            elif depth < count:
                source = "draft"
            else:
                source = "bonus" if index < len(counts) - 1 else "bonus, or a draft at the text's end"
            return {"index": index, "depth": depth, "num_tokens": count, "source": source}
        before += count
    return None


def _token(value: int | str | None) -> dict[str, Any]:
    return {"token_id": value, "text": None} if isinstance(value, int) else {"token_id": None, "text": value}


def _logits(client: ServerClient, prompt: Prompt, prefix: list[int], tokens: list[int]) -> dict[str, Any] | None:
    prompt_ids = client.render(prompt)
    if prompt_ids is None:
        return None
    start = len(prompt_ids) + len(prefix)
    logits: dict[int, Score] = {}
    dtype = ""
    for token in tokens:
        answer = client.score([*prompt_ids, *prefix, token], start, TOP_K)
        if answer is None or not answer[1]:
            return None
        dtype, (logits[token], *_) = answer
    top = next(iter(logits.values())).top
    best = top[0]
    seen = [best[1], *(score.logit for score in logits.values())]
    return {
        "dtype": dtype,
        "top": [_top_row(client, entry) for entry in top],
        "emitted": {str(token): {"logit": score.logit, "logprob": score.logprob} for token, score in logits.items()},
        "gap_nats": best[2] - min(score.logprob for score in logits.values()),
        "gap_ulp": gap_in_ulp(dtype, seen),
        "ulp": ulp(dtype, max(abs(x) for x in seen)) if all(math.isfinite(x) for x in seen) else None,
    }


def _top_row(client: ServerClient, entry: tuple[int, float, float]) -> dict[str, Any]:
    return {"token_id": entry[0], "text": client.detokenize([entry[0]]), "logit": entry[1], "logprob": entry[2]}
