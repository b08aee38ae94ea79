"""Stands in for ``jetspec serve`` in tests of what starts it: a mock server behind the same start-up protocol.

``MOCK_SERVE`` says how it behaves: ``ok``, ``silent death``, ``told death``, ``dies at N``, ``wrong``, ``slow``, ``no
DTYPE`` or ``loads for ever``.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.mock_server import Script, mock_server


def say(message: dict) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> int:
    scenario = os.environ.get("MOCK_SERVE", "ok")
    dtype = sys.argv[sys.argv.index("--dtype") + 1]
    if os.environ.get("MOCK_SERVE_PID"):
        Path(os.environ["MOCK_SERVE_PID"]).write_text(str(os.getpid()))
    if scenario == f"no {dtype}":
        say({"error": {"exit_code": 3, "what": f"dtype {dtype}: not on this device", "hint": ""}})
        return 3
    if scenario == "loads for ever":
        time.sleep(600)
    if scenario == "silent death":
        sys.stderr.write("Segmentation fault, of sorts\n")
        return 139
    if scenario == "told death":
        say({"error": {"exit_code": 4, "what": "model 'x': no such model", "hint": "jetspec models list"}})
        return 4
    script = Script(info={"dtype": "bfloat16" if dtype == "auto" else dtype, "argv": sys.argv[1:]})
    if scenario.startswith("dies at"):
        number = int(scenario.rpartition(" ")[2])
        script.status = lambda path, count: os._exit(9) if count >= number else 0
    if scenario == "wrong":
        script.change = lambda call, tokens: [tokens[0] + 1, *tokens[1:]] if call.is_tree else tokens
    if scenario == "slow":
        script.status = lambda path, count: time.sleep(0.1) or 0
    with mock_server(script) as (url, _):
        say({"kind": "progress", "message": "loading a mock", "info": {}})
        say({"kind": "ready", "message": url, "url": url, "info": script.info})
        while os.read(0, 4096):
            pass
    return 0


sys.exit(main())
