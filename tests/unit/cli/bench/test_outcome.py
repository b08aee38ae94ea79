"""How a measurement ended: a mismatch goes before failures, these before what is undecided."""

import pytest

from jetspec_cli.bench.document import DONE, ENGINE_FAILED, EXIT_CODE, INTERRUPTED, RUNNING, outcome


@pytest.mark.parametrize(
    ("status", "gates", "num_ok", "num_failed", "code"),
    [
        (DONE, ["passed", "oracle"], 8, 0, 0),
        (DONE, ["not gated"], 4, 0, 0),
        (DONE, [], 0, 0, 5),  # nothing was measured
        (DONE, ["passed", "failed"], 8, 0, 1),
        (DONE, ["passed"], 7, 1, 6),
        (DONE, ["passed", "inconclusive"], 8, 0, 5),
        (DONE, ["failed", "inconclusive"], 7, 1, 1),
        (DONE, ["inconclusive"], 7, 1, 6),
        (ENGINE_FAILED, ["passed"], 8, 0, 6),
        (ENGINE_FAILED, ["failed"], 3, 1, 1),
        (INTERRUPTED, ["failed"], 3, 1, 130),
        (RUNNING, ["failed"], 3, 1, None),
    ],
)
def test_what_is_certain_goes_before_what_is_not(status, gates, num_ok, num_failed, code):
    cells = [{"gate": {"outcome": one}} for one in gates]
    assert EXIT_CODE.get(outcome(status, cells, num_ok=num_ok, num_failed=num_failed)) == code
