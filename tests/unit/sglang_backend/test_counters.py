"""A request's rounds from its tokens' marks, and the marks from the scheduler's rounds."""

from types import SimpleNamespace

import pytest

from jetspec_engine.sglang_backend.counters import (
    CONTINUED,
    MARKS,
    PREFILL,
    TOTALS,
    counters,
    mark_of,
    note_rounds,
    report_rounds,
)

GRAPH, EAGER = mark_of(16, is_graph=True), mark_of(64, is_graph=False)


@pytest.mark.parametrize(
    ("marks", "num_tokens", "histogram", "nodes", "graph", "eager"),
    [
        ([], 1, [0, 1], 0, 0, 0),
        ([], 0, [0], 0, 0, 0),
        ([PREFILL, GRAPH, CONTINUED, CONTINUED, EAGER], 5, [0, 2, 0, 1], 80, 1, 1),
        ([PREFILL, GRAPH, CONTINUED, CONTINUED, EAGER], 3, [0, 1, 1], 16, 1, 0),  # cut by the cap within a round
        ([None, GRAPH, CONTINUED], 3, [0, 1, 1], 16, 1, 0),  # what SGLang pads with
        ([PREFILL, GRAPH, PREFILL, GRAPH, CONTINUED], 5, [0, 3, 1], 32, 2, 0),  # prefilled again after a retraction
    ],
)
def test_counters_hold_the_identities(marks, num_tokens, histogram, nodes, graph, eager):  # noqa: PLR0917 a table
    found = counters(marks, num_tokens)
    assert found["spec_accept_histogram"] == histogram
    assert (found["spec_nodes"], found["spec_graph_rounds"], found["spec_eager_rounds"]) == (nodes, graph, eager)
    assert found["spec_verify_ct"] == sum(histogram)
    assert sum(index * count for index, count in enumerate(histogram)) == num_tokens
    assert found["spec_num_proposed_drafts"] == nodes - graph - eager
    assert found["spec_num_correct_drafts"] == num_tokens - sum(histogram)


def make_request(num_tokens, *, is_finished=False):
    return SimpleNamespace(
        is_retracted=False, finished=lambda: is_finished, customized_info=None, output_ids=[7] * num_tokens
    )


def run_round(requests, gained, algorithm="JETSPEC", **result):
    batch = SimpleNamespace(reqs=requests, spec_algorithm=SimpleNamespace(name=algorithm))
    answer = SimpleNamespace(speculative_num_draft_tokens=16, can_run_cuda_graph=True, **result)
    assert note_rounds(lambda *_: gained, None, answer, batch) == gained


def test_each_round_marks_the_tokens_it_adds():
    running, done = make_request(1), make_request(4, is_finished=True)
    run_round([running, done], [[1, 2, 3], [9]])
    running.output_ids += [1, 2, 3]
    run_round([running, done], [[4], [9]], jetspec_nodes=64)
    marks = [PREFILL, GRAPH, CONTINUED, CONTINUED, mark_of(64, is_graph=True)]
    assert running.customized_info == {MARKS: marks}
    assert done.customized_info is None


def test_another_algorithm_is_left_alone():
    request = make_request(1)
    run_round([request], [[1]], algorithm="EAGLE")
    assert request.customized_info is None
    meta = {"spec_accept_histogram": [5]}
    manager = SimpleNamespace(server_args=SimpleNamespace(speculative_algorithm="DFLASH"))
    report_rounds(lambda *_: None, manager, meta, SimpleNamespace(completion_tokens=[3]), 0)
    assert meta == {"spec_accept_histogram": [5]}


def test_meta_info_has_counters_in_place_of_marks():
    meta, before = {MARKS: [PREFILL, GRAPH, CONTINUED], "completion_tokens": 3}, TOTALS.copy()
    manager = SimpleNamespace(server_args=SimpleNamespace(speculative_algorithm="jetspec"))
    report_rounds(lambda *_: None, manager, meta, SimpleNamespace(completion_tokens=[3]), 0)
    assert MARKS not in meta
    grown = {name: count - before[name] for name, count in TOTALS.items()}
    assert (grown["requests_finished"], grown["rounds"], grown["emitted_tokens"]) == (1, 2, 3)
    assert meta["spec_accept_histogram"] == [0, 1, 1]
