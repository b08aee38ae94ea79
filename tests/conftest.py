"""What every test may count on: an interrupt arrives, also where the whole run was started with interrupts ignored.

A shell starts a job in the background that way, and what ignores SIGINT hands that on to the processes it starts.
"""

import signal


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
