"""Where the program begins: the command ``jetspec`` and ``python -m jetspec_cli``."""

import sys
from typing import NoReturn


def start() -> NoReturn:
    """Load the program and run it. Ctrl-C while it loads is an interrupt, too: 1 would mean that a gate failed."""
    try:
        from jetspec_cli.app import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
