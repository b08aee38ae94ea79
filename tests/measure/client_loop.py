"""A client that is imported once and run for every line of stdin: python -m tests.measure.client_loop jetspec|sglang.

A line is the client's command line as a JSON list. An import takes longer than a pass. Answers each line with ``done``
or with what went wrong, as JSON on stdout's last line; the client's own report goes to stderr. Knows nothing of what
is compared.
"""

import contextlib
import json
import sys
import traceback
from collections.abc import Callable


def find_client(name: str) -> Callable[[], None]:
    """Return what runs a client on this process's command line."""
    if name == "jetspec":
        from jetspec_cli.app import main

        return main
    from sglang.benchmark import serving

    return serving.cli_main


def main() -> None:
    """Run passes until stdin ends."""
    name = sys.argv[1]
    run = find_client(name)
    for line in sys.stdin:
        sys.argv = [name, *json.loads(line)]
        failure = ""
        with contextlib.redirect_stdout(sys.stderr):
            try:
                run()
            except (SystemExit, Exception) as error:  # whatever it is, the other passes go on
                is_done = isinstance(error, SystemExit) and error.code in (0, None)
                failure = "" if is_done else "".join(traceback.format_exception(error))[-1500:]
        print(json.dumps({"failure": failure}), flush=True)


if __name__ == "__main__":
    main()
