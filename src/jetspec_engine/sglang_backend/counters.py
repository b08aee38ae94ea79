"""A request's rounds counted on SGLang: how many tokens each emitted, how many nodes it verified, graph or eager.

Two of SGLang's functions are hooked. The scheduler's marks, one a token, travel with the tokens themselves, so a round
that a stop or the cap cut short counts what it emitted. The tokenizer's process turns them into ``meta_info`` with the
embedded engine's meaning: the prefill is a round, and ``spec_accept_histogram[i]`` counts rounds that emitted i tokens.
Knows neither trees nor workers.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from jetspec_engine.sglang_backend.args import ALGORITHM

MARKS = "jetspec_marks"
# Of all requests since the server started, as /metrics tells them; kept where answers leave.
TOTALS: Counter[str] = Counter()
TOTALLED = {
    "rounds": "spec_verify_ct", "proposed_drafts": "spec_num_proposed_drafts", "graph_rounds": "spec_graph_rounds",
    "correct_drafts": "spec_num_correct_drafts", "eager_rounds": "spec_eager_rounds", "nodes": "spec_nodes",
    "emitted_tokens": "completion_tokens", "prompt_tokens": "prompt_tokens", "cached_tokens": "cached_tokens",
}  # fmt: skip
# A mark is a token's: it continues its round, is the prefill's, or begins a round of (nodes, graph).
CONTINUED, PREFILL = -1, 0


def mark_of(num_nodes: int, *, is_graph: bool) -> int:
    """Return the mark of a round's first token."""
    return 2 * num_nodes + is_graph


def note_rounds(original: Callable[..., list[list[int]]], processor: Any, result: Any, batch: Any) -> list[list[int]]:
    """Mark the tokens of a round (around ``SchedulerBatchResultProcessor._resolve_spec_v2_tokens``).

    Returns:
        SGLang's answer: the tokens each request gained, which it is about to append to the request's own.
    """
    tokens = original(processor, result, batch)
    if getattr(batch.spec_algorithm, "name", "") != ALGORITHM:
        return tokens
    nodes = getattr(result, "jetspec_nodes", result.speculative_num_draft_tokens)
    mark = mark_of(nodes, is_graph=bool(result.can_run_cuda_graph))
    for request, gained in zip(batch.reqs, tokens, strict=True):
        if request.is_retracted or request.finished() or not gained:
            continue
        if request.customized_info is None:
            request.customized_info = {}
        marks = request.customized_info.setdefault(MARKS, [])
        marks += [PREFILL] * (len(request.output_ids) - len(marks))
        marks += [mark, *[CONTINUED] * (len(gained) - 1)]
    return tokens


def report_rounds(
    original: Callable[..., None], manager: Any, meta_info: dict[str, Any], output: Any, index: int
) -> None:
    """Put our counters into a finished request's meta_info (around ``TokenizerManager``'s own counting)."""
    original(manager, meta_info, output, index)
    marks = meta_info.pop(MARKS, [])
    if str(manager.server_args.speculative_algorithm or "").upper() == ALGORITHM:
        meta_info |= counters(marks, int(output.completion_tokens[index]))
        TOTALS.update({name: int(meta_info.get(key) or 0) for name, key in TOTALLED.items()}, requests_finished=1)


def counters(marks: Sequence[int | None], num_tokens: int) -> dict[str, Any]:
    """Return the counters of one request.

    Args:
        marks: a mark a token; those that are missing at the end are the prefill's.
        num_tokens: tokens delivered.

    Returns:
        ``spec_verify_ct`` rounds, the prefill's included; ``spec_nodes`` nodes verified, roots included;
        ``spec_graph_rounds`` and ``spec_eager_rounds``, prefills aside.
    """
    given = [PREFILL if mark is None else mark for mark in marks][:num_tokens]
    given += [PREFILL] * (num_tokens - len(given))
    starts = [index for index, mark in enumerate(given) if mark != CONTINUED]
    sizes = [end - start for start, end in zip(starts, [*starts[1:], num_tokens], strict=False)]
    histogram = [0] * (max(sizes, default=0) + 1)
    for size in sizes:
        histogram[size] += 1
    rounds = [given[start] for start in starts if given[start] != PREFILL]
    proposed = sum(mark // 2 - 1 for mark in rounds)
    correct = num_tokens - len(sizes)
    return {
        "spec_verify_ct": len(sizes),
        "spec_accept_length": num_tokens / len(sizes) if sizes else 0.0,
        "spec_accept_rate": correct / proposed if proposed else 0.0,
        "spec_accept_histogram": histogram,
        "spec_correct_drafts_histogram": [sum(histogram[:2]), *histogram[2:]],
        "spec_num_correct_drafts": correct,
        "spec_num_proposed_drafts": proposed,
        "spec_nodes": sum(mark // 2 for mark in rounds),
        "spec_graph_rounds": sum(mark % 2 for mark in rounds),
        "spec_eager_rounds": sum(1 - mark % 2 for mark in rounds),
    }
