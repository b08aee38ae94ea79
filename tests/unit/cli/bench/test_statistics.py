"""Percentiles, medians, intervals and busy time, against values worked out by hand."""

import pytest

from jetspec_cli.bench.statistics import Unit, busy_seconds, distribution, interval, percentile, weighted_median


def units(*pairs: tuple[float, float]) -> list[Unit]:
    return [Unit(amount=amount, cost=cost) for amount, cost in pairs]


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (90, 3.7), (100, 4.0)])
def test_percentiles_are_linear_between_neighbours(percent, expected):
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(expected)


def test_a_distribution_leaves_out_what_is_not_known_and_is_none_without_anything():
    assert distribution([1.0, None, 3.0])["num"] == 2
    assert distribution([1.0, None, 3.0])["mean"] == 2.0
    assert distribution([None]) is None


def test_the_weighted_median_is_that_of_all_rounds():
    assert weighted_median([(1.0, 1), (2.0, 1), (9.0, 10)]) == 9.0
    assert weighted_median([(1.0, 5), (2.0, 1), (9.0, 1)]) == 1.0
    assert weighted_median([(1.0, 0)]) is None


def test_an_interval_holds_its_value_and_is_the_same_every_time():
    own, other = units((10, 1.0), (20, 1.9), (30, 3.2), (12, 1.3)), units((10, 2.0), (20, 4.1), (30, 6.0), (12, 2.2))
    found = interval(own, other)
    assert found["value"] == pytest.approx((72 / 7.4) / (72 / 14.3))
    assert found["low"] < found["value"] < found["high"]
    assert found == interval(own, other)


def test_equal_sides_give_an_interval_of_one_point():
    same = units((10, 1.0), (20, 3.0), (5, 0.2))
    assert interval(same, same) == {"value": 1.0, "low": 1.0, "high": 1.0, "num_units": 3}


def test_fewer_than_three_units_have_a_value_and_no_bounds():
    assert interval(units((10, 1.0), (10, 2.0)))["low"] is None
    assert interval([]) is None
    assert interval(units((0, 0.0))) is None


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    import random

    source, hits = random.Random(5), 0
    for _ in range(60):
        own = [Unit(amount=10, cost=source.gauss(1.0, 0.2)) for _ in range(30)]
        other = [Unit(amount=10, cost=source.gauss(2.0, 0.4)) for _ in range(30)]
        found = interval(own, other)
        hits += found["low"] <= 2.0 <= found["high"]
    assert 48 <= hits <= 60


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0.0), ([(0, 2), (1, 2)], 3.0), ([(5, 1), (0, 1)], 2.0), ([(0, 10), (2, 1)], 10.0)],
)
def test_busy_time_counts_overlaps_once(spans, expected):
    assert busy_seconds(spans) == expected
