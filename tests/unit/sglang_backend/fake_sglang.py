"""Stands in for a starting SGLang server: a script that listens, logs, lingers or dies as its arguments say.

Run as ``python fake_sglang.py PORT BEHAVIOUR [SERVER_INFO_JSON]``.
"""

import http.server
import os
import signal
import subprocess
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    body = b"{}"
    key = None

    def do_GET(self):
        if self.key and self.path != "/health" and self.headers["Authorization"] != f"Bearer {self.key}":
            self.send_error(401)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body if self.path == "/server_info" else b"")

    def log_message(self, *_):
        pass


def main(port, behaviour, info="{}"):
    print("Load weight begin", flush=True)  # noqa: T201
    print("chatter of no interest", flush=True)  # noqa: T201
    if behaviour == "dies":
        raise ValueError("no kernel for this card")
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "silent":
        time.sleep(600)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if behaviour == "workers":
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"Capture by worker {worker.pid}", flush=True)  # noqa: T201
    Handler.body = info.encode()
    Handler.key = behaviour.partition("key=")[2] or None
    server = http.server.HTTPServer(("127.0.0.1", int(port)), Handler)
    if behaviour == "ends":
        server.timeout = 5
        for _ in range(2):  # health, server info, then the end
            server.handle_request()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
