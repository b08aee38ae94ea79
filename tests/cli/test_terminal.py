"""What a person at a terminal sees: a moving bar on stderr, colour in the conclusion, and no trace of either in CI."""

import os
import pty
import sys

import pytest

from support.mock_server import mock_server


def run_in_terminal(words: list[str], **environment: str) -> tuple[int, str]:
    """Run a command on a pseudo-terminal; return its exit code and everything it wrote."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR")}
    settings = {**inherited, "TERM": "xterm", "COLUMNS": "120", **environment}
    process, terminal = pty.fork()
    if process == 0:
        os.execve(sys.executable, [sys.executable, "-m", "jetspec_cli", *words], settings)
    written = bytearray()
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        written += part
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), written.decode()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_bar_and_colour_on_a_terminal(prompts):
    with mock_server() as (url, _):
        code, text = run_in_terminal(["gate", "--prompts", str(prompts), "--url", url])
    assert code == 0
    assert "8/8" in text
    assert "\x1b[1;32mgate passed" in text
    assert "prompt 1/4" not in text


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(
    ("environment", "has_bar", "has_color"),
    [({"CI": "true"}, False, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
)
def test_CI_NO_COLOR_and_dumb_terminals_are_respected(prompts, environment, has_bar, has_color):
    with mock_server() as (url, _):
        code, text = run_in_terminal(["gate", "--prompts", str(prompts), "--url", url], **environment)
    assert code == 0
    assert ("8/8" in text) == has_bar
    assert ("prompt 1/4" in text) != has_bar
    assert ("\x1b[1;32mgate passed" in text) == has_color
