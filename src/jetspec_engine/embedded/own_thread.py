"""Parallel work on a thread that ends with it, so that its pool of workers ends too.

Knows nothing of what the work is. OpenMP keeps a pool of workers for every thread that ever ran a parallel section,
and its workers stop spinning between two sections as soon as the process has more of them than processors: each of
the hundreds of sections in a forward then begins with a system call. Measured on two cores: a verify of one row takes
14.0 ms when the engine's thread is the only one with a pool, and 23.2 ms once the thread that loaded the weights has
kept its own.
"""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


def run_apart(work: Callable[[], Answer]) -> Answer:
    """Run the work on a new thread, wait for it, and return what it returned or raise what it raised.

    Args:
        work: takes nothing. It is interrupted when the caller is. Thread-local settings of the caller, as torch's
            inference mode, do not reach it.
    """
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="jetspec-load", daemon=True)
    try:
        thread.start()
        return future.result()
    finally:
        # Ctrl-C reaches the caller alone. A thread still inside C++ when Python ends takes the process down with it.
        if thread.is_alive() and not future.done():
            interrupt(thread)
        if thread.ident is not None:
            thread.join()


def interrupt(thread: threading.Thread) -> None:
    """Raise KeyboardInterrupt in a thread at its next step of Python code; native code ends its step first."""
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))
