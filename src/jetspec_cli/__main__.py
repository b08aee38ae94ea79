"""Where the program begins: the command ``jetspec`` and ``python -m jetspec_cli``."""

import signal
import sys
from typing import NoReturn


def start() -> NoReturn:
    """Load the program and run it. Ctrl-C while it loads is an interrupt, too: 1 would mean that a gate failed."""
    try:
        take_sigterm()
        from jetspec_cli.app import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


def take_sigterm() -> None:
    """Make SIGTERM an interrupt like Ctrl-C, so that a stopped job keeps its rows and stops its server.

    A running server takes both signals itself and ends with 0. Whoever ignores SIGTERM for us means it.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


if __name__ == "__main__":
    start()
