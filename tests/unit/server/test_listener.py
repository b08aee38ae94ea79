"""The listener's log: what repeats without end is told once."""

import logging

import pytest

from jetspec_engine.server import listener


def record(message: str, at: float) -> logging.LogRecord:
    made = logging.LogRecord("asyncio", logging.ERROR, "f", 1, message, (), None)
    made.created = at
    return made


def test_a_message_that_floods_is_told_once_a_minute_and_counted() -> None:
    told: list[str] = []
    handler = listener._LogForwarder(logging.ERROR, told.append)
    for number in range(5000):
        handler.emit(record("socket.accept() out of system resource", 100.0 + number / 1000))
    assert told == ["socket.accept() out of system resource"]
    handler.emit(record("socket.accept() out of system resource", 161.0))
    handler.emit(record("another", 162.0))
    handler.emit(record("another one", 162.0))
    assert told[1:] == ["(4999 times more)", "socket.accept() out of system resource", "another", "another one"]


@pytest.mark.parametrize("message", ["a bug in the server"])
def test_the_same_bug_in_another_request_is_told_after_a_while(message: str) -> None:
    told: list[str] = []
    handler = listener._LogForwarder(logging.ERROR, told.append)
    for minute in range(3):
        handler.emit(record(message, 100.0 + 61 * minute))
    assert told == [message] * 3
