"""SGLang's ``bench_serving``, imported once and run for every line of stdin: a command line as a JSON list.

Its import takes longer than a pass. Answers each line with ``done`` or with what went wrong, as JSON on stdout's last
line; its own report goes to stderr. Knows nothing of what is compared.
"""

import contextlib
import json
import sys
import traceback

from sglang.benchmark import serving


def main() -> None:
    """Run passes until stdin ends."""
    for line in sys.stdin:
        sys.argv = ["bench_serving", *json.loads(line)]
        failure = ""
        with contextlib.redirect_stdout(sys.stderr):
            try:
                serving.cli_main()
            except (SystemExit, Exception) as error:  # whatever it is, the other passes go on
                failure = "".join(traceback.format_exception(error))[-1500:] if error.args != (0,) else ""
        print(json.dumps({"failure": failure}), flush=True)


if __name__ == "__main__":
    main()
