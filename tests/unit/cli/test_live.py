"""Lines of a gate run where no bar is drawn: of long prompts, too, and never many."""

import pytest

from jetspec_cli import console
from jetspec_cli.gating.runner import Step
from jetspec_cli.reporting import live
from jetspec_cli.reporting.live import QUIET_S, Live
from jetspec_cli.reporting.outputs import Outputs


class Clock:
    """Stands in for the module ``time``."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live, "time", clock)
    return clock


def run(clock: Clock, seconds_a_step: float, num_steps: int) -> None:
    watcher = Live(console.Bar(None, None), Outputs(), 10)
    watcher.on_start("decoding")
    for number in range(1, num_steps + 1):
        clock.now += seconds_a_step
        watcher.on_step(Step(num_done=number, num_total=22, prompt_id="p", label=f"W{number} B16"))


def test_a_prompt_of_many_slow_cells_has_a_line_a_cell(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    run(clock, QUIET_S, 3)
    assert capsys.readouterr().err.splitlines() == [
        "decoding",
        "p, W1 B16: 1/22 generations done",
        "p, W2 B16: 2/22 generations done, about 200 s left",
        "p, W3 B16: 3/22 generations done, about 190 s left",
    ]


def test_quick_cells_do_not_flood(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    run(clock, QUIET_S / 8, 20)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "decoding",
        "p, W8 B16",
        "p, W16 B16",
    ]


def test_a_prompts_own_line_counts(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Live(console.Bar(None, None), Outputs(), 10)
    watcher.on_start("decoding")
    clock.now += QUIET_S - 1
    watcher.on_prompt("p", {"identical": 2}, {})
    clock.now += 2
    watcher.on_step(Step(num_done=3, num_total=20, prompt_id="q", label="linear"))
    assert capsys.readouterr().err.splitlines() == ["decoding", "prompt 1/10 p: 2 identical"]


def test_where_a_bar_is_drawn_there_are_no_lines(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "is_live", lambda: True)
    run(clock, QUIET_S, 3)
    assert capsys.readouterr().err == "decoding\n"
