"""A server that is busy for a moment is waited for; one that stays busy is told of."""

import pytest

from jetspec_cli.serving import client as client_module
from jetspec_cli.serving.client import ServerClient
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import BusyError
from support.mock_server import Script, mock_server


def busy(times: int, path: str) -> Script:
    """Return a script that answers 409 so many times at one path."""
    left = [times]

    def status(asked: str, _: int) -> int:
        if asked == path and left[0] > 0:
            left[0] -= 1
            return 409
        return 0

    return Script(status=status)


@pytest.mark.parametrize("times", [0, 2])
def test_a_tree_is_switched_and_the_cache_flushed_once_the_server_is_idle(times: int) -> None:
    with mock_server(busy(times, "/jetspec/tree")) as (url, _), ServerClient.connect(url) as client:
        assert client.set_tree(TreeConfig(width=2, budget=4)).width == 2
    with mock_server(busy(times, "/flush_cache")) as (url, _), ServerClient.connect(url) as client:
        assert client.flush_cache()
        assert client.can_flush


def test_a_server_that_stays_busy_is_an_error_and_no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BUSY_PATIENCE_S", 0.3)
    with (
        mock_server(busy(1000, "/jetspec/tree")) as (url, _),
        ServerClient.connect(url) as client,
        pytest.raises(BusyError, match="still busy"),
    ):
        client.set_tree(TreeConfig())
    with mock_server(busy(1000, "/flush_cache")) as (url, _), ServerClient.connect(url) as client:
        assert not client.flush_cache()
