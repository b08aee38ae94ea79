"""Speaks as much of SGLang's HTTP as the measuring scripts use, without a model: python fake_server.py OPTIONS.

A round sleeps a time that depends on the rows, five tokens each; ``--attention-backend=broken`` ends at once.
"""

import gzip
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORDS = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
ALGORITHM = WORDS.get("speculative-algorithm")
STATE = {"rows": 16 if ALGORITHM else 1}


def ids_of(prompt, count):
    """The answer: a function of the prompt."""
    return [(sum(prompt) + 7 * i) % 1000 for i in range(count)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._reply(b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/jetspec/tree":
            STATE["rows"] = body["budget"] or 16
            STATE["asked"] = not STATE.get("asked")
            self._reply(b"{}", 409 if STATE["asked"] else 200)  # busy at first
        elif self.path == "/start_profile":
            STATE["trace"] = Path(body["output_dir"]) / f"{time.time()}-TP-0.trace.json.gz"
            self._reply(b"ok")
        else:
            self._generate(body)

    def _reply(self, data, status=200):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data)

    def _generate(self, body):
        count = body["sampling_params"]["max_new_tokens"]
        ids = ids_of(body["input_ids"], count)
        rounds = -(-(count - 1) // 5) if ALGORITHM else 0
        self.send_response(200)
        self.end_headers()
        self._part({"output_ids": ids[:1], "meta_info": {"completion_tokens": 1, "finish_reason": None}})
        time.sleep((rounds or count - 1) * (1e-4 + 1e-6 * STATE["rows"]))
        meta = {"completion_tokens": count, "finish_reason": {"type": "length"}}
        if ALGORITHM:
            meta["spec_verify_ct"] = rounds
        if ALGORITHM == "JETSPEC":
            meta |= {"spec_graph_rounds": rounds, "spec_eager_rounds": 0, "spec_verify_ct": rounds + 1}
        self._part({"output_ids": ids, "meta_info": meta})
        self.wfile.write(b"data: [DONE]\n\n")
        if path := STATE.pop("trace", None):
            with gzip.open(path, "wt") as file:
                json.dump({"traceEvents": trace_events(4, has_tree=ALGORITHM == "JETSPEC")}, file)

    def _part(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


def trace_events(num_rounds, *, has_tree):
    """Rounds of 30 draft kernels of 2 us, candidates, a build, a verify of 100 kernels, and what follows."""
    events, now, launch = [{"ph": "X", "cat": "cpu_op", "name": "op", "ts": 0, "dur": 1}], 100.0, 1

    def add(name, length, correlation, cat="kernel"):
        nonlocal now
        events.append(
            {"ph": "X", "cat": cat, "name": name, "ts": now, "dur": length, "args": {"correlation": correlation}}
        )
        now += length + 0.5

    for _ in range(num_rounds):
        draft, verify, eager = launch, launch + 1, launch + 2
        launch += 10
        for _ in range(30):
            add("gemm", 2.0, draft)
        add("lm_head_gemm", 50.0, draft)
        if has_tree:
            for name, length in (("_best_of_chunk", 4.0), ("_best_of_all", 3.0), ("where", 1.0), ("_rank", 5.0)):
                add(name, length, draft)
            add("_grow", 20.0, draft)
            add("_lay_out", 6.0, draft)
            add("index_select", 1.5, eager)
        for _ in range(50):
            add("gemm", 10.0, verify)
            add("_tail" if has_tree else "flash_fwd", 7.0, verify)
        add("argmax", 8.0, eager + 1)
        if has_tree:
            add("_move", 5.0, eager + 2)
        add("fc_gemm", 9.0, eager + 3)
        add("copy", 1.0, eager + 4, cat="gpu_memcpy")
    return events


def main():
    """Serve until killed."""
    if WORDS["attention-backend"] == "broken":
        sys.stderr.write("ValueError: no such backend\n")
        raise SystemExit(3)
    ThreadingHTTPServer(("127.0.0.1", int(WORDS["port"])), Handler).serve_forever()


if __name__ == "__main__":
    main()
