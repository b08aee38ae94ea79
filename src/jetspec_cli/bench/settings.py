"""What a document's cells ran on: the setting that names their group, and the details that keep unlike runs apart.

Details are shown only where two runs of one setting differ in them. Knows documents' envelope only.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Cell = dict[str, Any]


def setting_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what a group of cells is named by; ``details`` is filled in by ``tell_apart``."""
    info, asked = _info(document), document["configuration"]
    return {
        "target": str(info.get("target") or "?"),
        "head": str(info.get("head") or ""),
        "engine": str(info.get("engine") or "?"),
        "attention": str(info.get("attention") or "") if info.get("engine") == "sglang" else "",
        "dtype": str(info.get("dtype") or asked.get("dtype") or "?"),
        "device": str(info.get("device") or "?"),
        "prompts": " ".join(asked.get("prompts") or ()),
        "concurrency": str(asked.get("concurrency")),
        "details": "",
    }


def details_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the machine and the load: cells that differ in them are not the same cell measured again."""
    stamp, asked = document["environment"], document["configuration"]
    gpus = list(stamp.get("gpus") or [])
    is_gpu = bool(gpus) and str(_info(document).get("device") or "cuda").startswith("cuda")
    cap, rate = asked.get("max_new_tokens"), asked.get("request_rate")
    return {
        # A new driver is no other machine.
        "machine": str(gpus[0]).partition(",")[0] if is_gpu else str(stamp.get("processor") or "?"),
        "cap": "the prompts' own caps" if cap is None else f"at most {cap} tokens",
        "rate": "" if rate is None else f"{rate} requests/s",
    }


def tell_apart(cells: Iterable[Cell]) -> None:
    """Write into every cell's setting the details in which cells of equal settings differ."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell["setting"].values()), []).append(cell)
    for group in groups.values():
        varied = [key for key in group[0]["details"] if len({cell["details"][key] for cell in group}) > 1]
        for cell in group:
            words = [cell["details"][key] for key in varied]
            cell["setting"] = {**cell["setting"], "details": ", ".join(filter(None, words))}


def _info(document: Mapping[str, Any]) -> Mapping[str, Any]:
    info: Mapping[str, Any] = document["servers"][-1]["info"] if document["servers"] else {}
    return info
