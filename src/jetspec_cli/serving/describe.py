"""What a server says of itself: under our names for a stock SGLang server, and in a few lines for people."""

from collections.abc import Mapping
from typing import Any

from jetspec_engine.config import TreeConfig

# Our name for what stock SGLang's /get_server_info says.
STOCK_NAMES = {
    "version": "version", "target": "model_path", "head": "speculative_draft_model_path",
    "algorithm": "speculative_algorithm", "device": "device", "max_seq_len": "context_length",
    "page_size": "page_size", "tp_size": "tp_size", "is_deterministic": "enable_deterministic_inference",
}  # fmt: skip


def info_of_stock(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a stock SGLang server runs, under the names our own servers use; what it leaves open is left out."""
    info = {"engine": "sglang", **{ours: body.get(theirs) for ours, theirs in STOCK_NAMES.items()}}
    info["attention"] = body.get("decode_attention_backend") or body.get("attention_backend")
    info["dtype"] = None if body.get("dtype") == "auto" else body.get("dtype")
    return {name: value for name, value in info.items() if value is not None}


def tree_label(tree: Mapping[str, Any] | TreeConfig) -> str:
    """Name a tree briefly: ``W8 B16``, with the rule and its numbers where they are not the default."""
    given = tree.to_mapping() if isinstance(tree, TreeConfig) else dict(tree)
    budget = given.get("budget")
    words = [f"W{given.get('width', '?')}", "B=D+1" if budget is None else f"B{budget}"]
    if given.get("rule", TreeConfig.rule) != TreeConfig.rule:
        words.append(str(given["rule"]))
    if given.get("rule") == "top2gap":
        words.append(f"beta {given.get('beta'):g} g0 {given.get('g0'):g}")
    if given.get("keep_spine"):
        words.append("spine")
    return " ".join(words)


def describe(info: Mapping[str, Any], url: str) -> list[str]:
    """Return the lines that say what runs: engine, models, dtype, attention, tree and where to reach it."""
    tree, room = info.get("tree") or {}, info.get("max_tree") or {}
    rows = {
        "engine": _join(info, "engine", "version"),
        "target": info.get("target"),
        "head": _head(info),
        "dtype": _join(info, "dtype", "device"),
        "attention": info.get("attention"),
        "graphs": {True: "on", False: "off"}.get(bool(info["is_graph"])) if "is_graph" in info else None,
        "tree": f"{tree_label(tree)} of depth {_depth(tree, info.get('draft_depth'))}" if tree else None,
        "switchable up to": f"W{room.get('width')} B{room.get('budget')}" if room else None,
        "context": info.get("max_seq_len"),
        "url": url,
    }
    lines = [f"{name:<17} {value}" for name, value in rows.items() if value not in (None, "")]
    return lines + [f"note: {note}" for note in info.get("notes") or ()]


def _depth(tree: Mapping[str, Any], draft_depth: int | None) -> str:
    """Return how deep a tree is: as deep as drafts reach, and as its nodes below the root are enough for."""
    if draft_depth is None:
        return "?"
    budget = tree.get("budget")
    deepest = draft_depth if budget is None else min(draft_depth, budget - 1)
    is_chain = tree.get("width") == 1 or tree.get("keep_spine")
    return str(deepest) if is_chain else f"{deepest} at most"


def _join(info: Mapping[str, Any], *keys: str) -> str:
    return " ".join(str(info[key]) for key in keys if info.get(key) not in (None, ""))


def _head(info: Mapping[str, Any]) -> str:
    drafter = info.get("drafter", "head")
    return str(info.get("head") or "none") if drafter == "head" else f"none, drafter {drafter}"
