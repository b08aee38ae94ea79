"""Small jobs handed to the engine's thread by others, which wait for the answer.

Knows nothing of what the jobs do.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from jetspec_engine.errors import EngineError

Answer = TypeVar("Answer")


class JobQueue:
    """Jobs that one thread runs when it has time.

    Args:
        wake: notified when a job arrives; also guards the queue.
    """

    def __init__(self, wake: threading.Condition) -> None:
        self._wake = wake
        self._jobs: deque[Callable[[], None]] = deque()
        self._worker: threading.Thread | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def serve_on(self, worker: threading.Thread) -> None:
        """Name the thread that runs the jobs; asked from there, a job runs at once."""
        self._worker = worker

    def ask(self, job: Callable[[], Answer]) -> Answer:
        """Wait until the job has run and return what it returned or raise what it raised.

        Raises:
            EngineError: the queue is closed.
        """
        if threading.current_thread() is self._worker:
            return job()
        future: Future[Answer] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        with self._wake:
            if self._is_closed:
                raise EngineError("engine: closed")
            self._jobs.append(run)
            self._wake.notify()
        return future.result()

    def run_all(self) -> None:
        """Run what has arrived, on the calling thread."""
        while self._jobs:
            self._jobs.popleft()()

    def close(self) -> None:
        """Take no more jobs."""
        with self._wake:
            self._is_closed = True
