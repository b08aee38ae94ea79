"""What long jobs show where no bar can be drawn, and where one can."""

from contextlib import contextmanager

import pytest

from jetspec_cli import console
from jetspec_cli.meter import Meter


def test_a_job_is_a_line_a_tenth_and_what_has_no_total_a_line():
    lines = []
    with Meter(lines.append) as meter:
        for done in range(0, 1001, 7):
            meter.show("downloading", done, 1000)
        meter.show("downloading", 1000, 1000)
        meter.show("unpacking", 0, 0)
        meter.show("unpacking", 0, 0)
        meter.show("converting", 3, 30)
    tenths = [f"downloading: {percent} %" for percent in range(0, 101, 10)]
    assert lines == [*tenths, "unpacking", "converting: 10 %"]


def test_what_goes_back_is_not_told_again():
    # Several files of one download report in turn.
    lines = []
    meter = Meter(lines.append)
    for done in (0, 500, 100, 600, 100):
        meter.show("downloading", done, 1000)
    assert lines == ["downloading: 0 %", "downloading: 50 %", "downloading: 60 %"]


@pytest.fixture
def drawn(monkeypatch):
    """A terminal; everything a bar is told, and when it is taken away."""
    news = []

    class Bar:
        def update(self, **values):
            news.append(values)

    @contextmanager
    def bar(label, total):
        news.append("up")
        yield Bar()
        news.append("away")

    monkeypatch.setattr(console, "is_live", lambda: True)
    monkeypatch.setattr(console, "bar", bar)
    return news


def test_on_a_terminal_a_bar_is_drawn_and_gone_before_a_line_is_written(drawn):
    with Meter(drawn.append) as meter:
        meter.show("downloading", 1, 4)
        meter.show("downloading", 2, 4)
        meter.show("unpacking", 0, 0)
        meter.show("converting", 1, 2)
    amounts = [{"label": "downloading", "done": done, "total": 4} for done in (1, 2)]
    converting = {"label": "converting", "done": 1, "total": 2}
    assert drawn == ["up", *amounts, "away", "unpacking", "up", converting, "away"]


def test_a_meter_that_may_not_draw_writes_lines_on_a_terminal_too(drawn):
    with Meter(drawn.append, can_draw=False) as meter:
        meter.show("downloading", 2, 4)
    assert drawn == ["downloading: 50 %"]
