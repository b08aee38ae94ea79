"""A profile document for the terminal: phases, the memory floor, kernels. Knows plain data only."""

from collections.abc import Mapping
from typing import Any

from jetspec_cli.reporting import tables
from jetspec_cli.serving.describe import tree_label

NUM_KERNELS = 15


def render(document: Mapping[str, Any]) -> str:
    """Return the document as tables; milliseconds a round."""
    head = (
        f"{tree_label(document['tree'])}: {_ms(document['round_s'])} ms a round (median of {document['num_rounds']}), "
        f"{document['num_context_tokens']} tokens of context"
    )
    return "\n\n".join(part for part in (head, _phases(document), _floor(document), _kernels(document)) if part)


def _phases(document: Mapping[str, Any]) -> str:
    columns = {"phase": "phase", "ms": "ms", "share": "share", "floor": "memory floor ms", "gap": "times the floor"}
    floor = document["floor"] or {"least_s": {}, "gap": {}}
    total = sum(document["phase_s"].values())
    rows = [
        {
            "phase": name,
            "ms": _ms(seconds),
            "share": f"{seconds / total:.1%}",
            "floor": _ms(floor["least_s"][name]) if name in floor["least_s"] else "-",
            "gap": f"{floor['gap'][name]:.2f}" if name in floor["gap"] else "-",
        }
        for name, seconds in document["phase_s"].items()
    ]
    return tables.plain(columns, rows)


def _floor(document: Mapping[str, Any]) -> str:
    floor = document["floor"]
    if not floor:
        return ""
    sizes = floor["bytes"]
    return (
        f"memory floor: {tables.size(sizes['target'])} of target weights and {tables.size(sizes['kv_per_token'])} of "
        f"keys and values a context token for a verify, {tables.size(sizes['head'])} of weights for a draft, at "
        f"{floor['bandwidth_bytes_s'] / 1e9:.1f} GB/s, measured here by a plain sum"
    )


def _kernels(document: Mapping[str, Any]) -> str:
    columns = {"name": "kernel", "calls": "calls a round", "ms": "own ms a round", "share": "share"}
    total = sum(row["self_s"] for row in document["kernels"]) or 1.0
    rows = [
        {
            "name": str(row["name"])[:60],
            "calls": f"{row['calls']:.1f}",
            "ms": _ms(row["self_s"]),
            "share": f"{row['self_s'] / total:.1%}",
        }
        for row in document["kernels"][:NUM_KERNELS]
    ]
    note = "kernels are timed in a second pass, under the profiler, which makes small operations look longer"
    return f"{tables.plain(columns, rows)}\n{note}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"
