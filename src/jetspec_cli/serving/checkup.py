"""Finds out what can run on this machine: system, packages, devices, engines, models.

Looks and loads nothing but torch. Knows nothing of printing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jetspec_cli import environment
from jetspec_engine import registry
from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import JetspecError

# Instructions that make bfloat16 on the CPU the fast choice; the engine's own default follows the same rule.
FAST_BFLOAT16_FEATURES = ("amx_bf16", "avx512_bf16")
SHOWN_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")


def examine(target: str) -> dict[str, Any]:
    """Return everything as plain data; ``can_run`` says whether some engine can run with the demo pair's names.

    Args:
        target: whose tree states are reckoned; never downloaded.
    """
    stamp = environment.stamp()
    features = stamp["processor_features"]
    torch = examine_torch()
    engines = {name: examine_engine(name) for name in registry.BACKENDS}
    return {
        "can_run": any(engine["is_available"] for engine in engines.values()),
        "engines": engines,
        "system": {
            "platform": stamp["platform"],
            "python": stamp["python"],
            "processor": stamp["processor"],
            "features": [name for name in SHOWN_FEATURES if name in features],
            "cores": stamp["cores"],
            "memory_bytes": stamp["memory_bytes"],
            "cuda_visible_devices": stamp["cuda_visible_devices"],
        },
        "torch": torch,
        "packages": {name: environment.package_version(name) or "missing" for name in ("sglang", "flashinfer-python")},
        "dtype": expected_dtype(features, torch),
        "models": examine_models(),
        "tree_states": examine_tree_states(target),
    }


def expected_dtype(features: list[str], torch: Mapping[str, Any]) -> str:
    """Return what ``--dtype auto`` should choose on the device that ``--device auto`` chooses."""
    if torch.get("cuda_devices"):
        return "bfloat16"
    return "bfloat16" if any(name in features for name in FAST_BFLOAT16_FEATURES) else "float32"


def examine_torch() -> dict[str, Any]:
    """Return torch's version and CUDA devices, as CUDA_VISIBLE_DEVICES lets this process see them."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return {"version": "missing", "problem": " ".join(str(error).split())[:200]}
    devices = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            capability = f"sm_{properties.major}{properties.minor}"
            devices.append({"name": properties.name, "capability": capability, "memory_bytes": properties.total_memory})
    return {"version": torch.__version__, "cuda": torch.version.cuda, "cuda_devices": devices}


def examine_engine(name: str) -> dict[str, Any]:
    """Return whether an engine can run here, and what it lacks."""

    def ask() -> dict[str, Any]:
        answer = registry.backend(name).availability(ServeConfig(engine=name))
        return {"is_available": answer.is_available, "missing": list(answer.missing), "hint": answer.hint}

    return _or_problem(ask, {"is_available": False})


def examine_models() -> dict[str, Any]:
    """Return the cache folder and which catalogue models are in it."""
    cache = environment.cache_dir()

    def ask() -> dict[str, Any]:
        entries = registry.model_store().list(cache)
        return {"present": {str(entry["name"]): bool(entry["is_present"]) for entry in entries}}

    return {"cache_dir": str(cache), **_or_problem(ask, {})}


def examine_tree_states(target: str) -> dict[str, Any]:
    """Return the memory that recurrent states of a tree take, for a published shape and for a target."""
    return _or_problem(lambda: dict(registry.tree_states().report(target, environment.cache_dir())), {})


def _or_problem(ask: Callable[[], dict[str, Any]], otherwise: dict[str, Any]) -> dict[str, Any]:
    try:
        return ask()
    except JetspecError as error:
        return {**otherwise, "problem": error.what, "hint": error.hint}
