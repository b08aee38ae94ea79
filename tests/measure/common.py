"""What the measuring scripts share: the engine in this process, one request at a time, and the stamp of a result."""

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jetspec_engine import __version__
from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.embedded.assembly import build_engine
from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.records import GenerateRequest, RequestStats, SamplingParams, StepEvent

ROOT = Path(__file__).parents[2]
CLASSES = ("chat", "code", "math", "prose", "list", "json")


@dataclass(frozen=True)
class Answer:
    """One decoded prompt: its ids, its counters and the wall seconds from submit to the last event."""

    ids: tuple[int, ...]
    stats: RequestStats
    wall_s: float


def cache_dir() -> Path:
    """Return the model cache the command line would use."""
    base = os.environ.get("JETSPEC_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "jetspec"


def start(**changes: Any) -> EmbeddedEngine:
    """Start the engine with the demo pair."""
    config = ServeConfig(cache_dir=str(cache_dir()), **changes)
    return build_engine(config, lambda progress: print(progress.label, file=sys.stderr))


def read_prompts(name: str) -> list[dict[str, Any]]:
    """Return the lines of prompts/NAME.jsonl."""
    text = (ROOT / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def encode(engine: EmbeddedEngine, prompt: dict[str, Any]) -> tuple[int, ...]:
    """Return the ids of a chat prompt."""
    rendered = engine.tokenizer.render_chat(prompt["messages"])
    return tuple(engine.tokenizer.encode_rendered(rendered))


def answer(engine: EmbeddedEngine, tree: TreeConfig, ids: tuple[int, ...], sampling: SamplingParams) -> Answer:
    """Decode one prompt on an empty cache."""
    engine.set_tree(tree)
    engine.flush_cache()
    done, events = threading.Event(), []

    def on_event(event: StepEvent) -> None:
        events.append(event)
        if event.finish is not None:
            done.set()

    begin = time.perf_counter()
    engine.submit(GenerateRequest(request_id="measure", input_ids=ids, sampling=sampling), on_event)
    done.wait()
    wall_s = time.perf_counter() - begin
    last = events[-1]
    assert last.finish is not None
    assert last.stats is not None
    if last.finish.kind == "error":
        raise RuntimeError(last.finish.message)
    return Answer(tuple(token for event in events for token in event.token_ids), last.stats, wall_s)


def stamp(engine: EmbeddedEngine) -> dict[str, Any]:
    """Return what a result of the engine in this process needs to be reproduced."""
    document = stamp_script(engine.info())
    document["environment"] |= {"torch": torch.__version__, "num_threads": torch.get_num_threads()}
    return document


def stamp_script(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result needs to be reproduced, wherever the engine runs that says this of itself."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "schema_version": 1,
        "version": __version__,
        "commit": commit.stdout.strip(),
        "command": "python " + " ".join(["-m", f"tests.measure.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "environment": {
            "platform": platform.platform(),
            "cpu": cpu_name(),
            "num_cores": os.cpu_count(),
            "python": platform.python_version(),
        },
        "engine": {key: value for key, value in info.items() if not key.endswith("_path")},
    }


def cpu_name() -> str:
    """Return the processor's name and the matrix features that matter."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    names = {key.strip(): value.strip() for key, value in fields.items()}
    features = [name for name in ("amx_bf16", "avx512_bf16") if name in names.get("flags", "")]
    return f"{names.get('model name', platform.processor())} ({', '.join(features) or 'no bf16 instructions'})"


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a result document, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.part")
    made.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    made.replace(path)
