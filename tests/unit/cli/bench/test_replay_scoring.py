"""The cost model and the choice of what is measured: lines through timed rounds, and a Pareto front without clocks."""

import pytest

from jetspec_cli.bench.plan import arm_of
from jetspec_cli.bench.replay import prediction
from jetspec_cli.bench.replay.scoring import Replayed, accept_length, choose_live, row_count
from jetspec_cli.bench.replay.step_cost import StepCost, StepPoint
from jetspec_engine.config import LINEAR, PLAIN, TreeConfig
from jetspec_engine.errors import EngineError
from jetspec_engine.records import ReplayedRound

LINEAR_POINTS = (StepPoint(num_rows=None, context=100, seconds=1.0), StepPoint(num_rows=None, context=300, seconds=2.0))


def tree_point(num_rows: int, context: float, seconds: float) -> StepPoint:
    return StepPoint(num_rows=num_rows, context=context, seconds=seconds)


def test_live_rounds_that_are_not_the_replayed_ones_are_noticed():
    rounds = (ReplayedRound(num_nodes=16, num_emitted=3, num_correct=2),) * 2
    replayed = Replayed(prompt_id="p", text_class="code", num_prompt_tokens=5, rounds=rounds)
    # Tokens and rounds of all passes, then seconds; one pass has the prefill's round and these two.
    for sums in ([7, 3, 0.5], [14, 6, 1.0], None):
        assert prediction._has_same_rounds(replayed, sums)
    for sums in ([7, 4, 0.5], [8, 3, 0.5], [14, 7, 1.0]):
        assert not prediction._has_same_rounds(replayed, sums)


def test_lines_run_through_the_contexts_and_row_counts_are_mixed_between():
    cost = StepCost([*LINEAR_POINTS, *(tree_point(n, c, n * 0.1 + c * 0.01) for n in (16, 32) for c in (100, 300))])
    assert cost.linear_s(200) == pytest.approx(1.5)
    assert cost.linear_s(500) == pytest.approx(3.0)
    assert cost.tree_s(16, 200) == pytest.approx(3.6)
    assert cost.tree_s(24, 200) == pytest.approx(4.4)
    assert cost.tree_s(3, 200) == cost.tree_s(16, 200)
    assert cost.tree_s(99, 200) == cost.tree_s(32, 200)


def test_noise_that_makes_a_long_context_cheaper_becomes_a_flat_line_at_the_mean():
    cost = StepCost(
        [StepPoint(num_rows=None, context=1, seconds=1.0), tree_point(8, 100, 3.0), tree_point(8, 300, 1.0)]
    )
    assert cost.tree_s(8, 5000) == pytest.approx(2.0)
    assert cost.linear_s(5000) == 1.0


def test_noise_that_makes_a_long_context_dear_gives_no_negative_time_in_a_short_one():
    cost = StepCost([*LINEAR_POINTS, tree_point(8, 64, 0.1), tree_point(8, 79, 5.0)])
    assert cost.tree_s(8, 1) > 0
    assert cost.tree_s(8, 0) >= 0


@pytest.mark.parametrize("points", [[], LINEAR_POINTS, [tree_point(8, 1, 1.0)]])
def test_a_model_without_linear_or_tree_rounds_is_refused(points):
    with pytest.raises(EngineError, match="cost model"):
        StepCost(points)


def replayed(num_nodes: int, *emitted: int) -> list[Replayed]:
    rounds = tuple(ReplayedRound(num_nodes=num_nodes, num_emitted=n, num_correct=n - 1) for n in emitted)
    return [Replayed(prompt_id="p", text_class="c", num_prompt_tokens=10, rounds=rounds)]


def test_the_front_holds_no_cell_that_another_beats_with_no_more_rows():
    def arm(width: int, budget: int):
        return arm_of(TreeConfig(width=width, budget=budget))

    cells = {
        arm_of(PLAIN): replayed(1, 1, 1, 1, 1, 1, 1),
        arm_of(LINEAR): replayed(16, 2, 2, 2),
        arm(4, 32): replayed(32, 3, 3),
        arm(4, 16): replayed(16, 2, 2, 2),
        arm(8, 16): replayed(16, 2, 4),
        arm(2, 16): replayed(16, 4, 2),
        arm(8, 64): replayed(64, 3, 3),
        arm(8, 32): replayed(32, 6),
    }
    assert [one.label for one in choose_live(cells)] == ["W8 B16", "W8 B32"]
    assert accept_length(cells[arm(8, 32)]) == 7 / 2
    assert row_count(cells[arm(8, 64)]) == 64


def test_contexts_and_counters_of_a_replayed_request():
    [one] = replayed(16, 2, 3)
    assert one.contexts == [10, 12]
    counters = one.counters()
    assert counters["accept_histogram"] == [0, 1, 1, 1]
    assert (counters["num_rounds"], counters["num_emitted_tokens"]) == (3, 6)
    assert counters["num_proposed_drafts"] == 30
    assert counters["num_correct_drafts"] == 3
