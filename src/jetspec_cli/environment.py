"""What the caller's environment says, and the stamp of machine and versions that goes into every result.

The environment is read here and in ``console`` only, and never written. Tokens and keys are never recorded.
"""

import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

STAMPED_PACKAGES = (
    "jetspec", "torch", "numpy", "transformers", "tokenizers", "safetensors", "fastapi", "uvicorn", "httpx",
    "sglang", "flashinfer-python", "triton",
)  # fmt: skip
# What a container sees of its own limits on Linux.
CONTROL_GROUPS = Path("/sys/fs/cgroup")


def cache_dir() -> Path:
    """Return the folder of pulled models: JETSPEC_CACHE, else XDG_CACHE_HOME/jetspec, else ~/.cache/jetspec."""
    own = os.environ.get("JETSPEC_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jetspec"


def api_key() -> str | None:
    """Return JETSPEC_API_KEY, or None."""
    return os.environ.get("JETSPEC_API_KEY") or None


def job_summary() -> Path | None:
    """Return the file in which a GitHub job collects its summary, or None outside such a job."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(path) if path else None


def package_version(name: str) -> str | None:
    """Return an installed package's version without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def command_output(*command: str) -> str:
    """Run a program found by name and return its output; empty when it is missing or fails."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def processor() -> tuple[str, frozenset[str]]:
    """Return the processor's name and its feature flags (empty where /proc/cpuinfo does not exist)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = found.get("flags") or found.get("Features") or ""
    return found.get("model name") or platform.machine(), frozenset(flags.split())


def memory_bytes(groups: Path = CONTROL_GROUPS) -> int | None:
    """Return the memory this process may use: the machine's, or a container's limit; None where nobody says."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    # A control group without a limit says "max", or in the older layout a number beyond any memory.
    limits = (_numbers(groups / name) for name in ("memory.max", "memory/memory.limit_in_bytes"))
    return min([whole, *(limit[0] for limit in limits if limit)])


def usable_cores(groups: Path = CONTROL_GROUPS) -> int:
    """Return how many cores this process may use: those it may run on, and no more than a container's share of time."""
    return share_of_cores(groups) or _own_cores()


def share_of_cores(groups: Path = CONTROL_GROUPS) -> int | None:
    """Return how many cores a container's share of time amounts to, None where it is no less than those there are."""
    older = _numbers(groups / "cpu/cpu.cfs_quota_us") + _numbers(groups / "cpu/cpu.cfs_period_us")
    shares = [math.ceil(share[0] / share[1]) for share in (_numbers(groups / "cpu.max"), older)
              if len(share) == 2 and min(share) > 0]  # fmt: skip
    least = min(shares, default=None)
    return least if least is not None and least < _own_cores() else None


def thread_limit(groups: Path = CONTROL_GROUPS) -> int | None:
    """Return how many threads a container's share of time is worth; None without one, or where OpenMP is told."""
    return None if "OMP_NUM_THREADS" in os.environ else share_of_cores(groups)


def _own_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _numbers(path: Path) -> list[int]:
    """Return the numbers in a file of the system's, none when there is no such file or it holds words."""
    try:
        return [int(word) for word in path.read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        return []


def git_commit() -> str | None:
    """Return the commit of the checkout this package runs from, marked when it has changes; None elsewhere."""
    own = Path(__file__).resolve()
    here = str(own.parent)
    # Installed below somebody's project, this file is none of that repository's.
    is_ours = bool(command_output("git", "-C", here, "ls-files", "--", own.name))
    commit = command_output("git", "-C", here, "rev-parse", "HEAD") if is_ours else ""
    if not commit:
        return None
    is_dirty = command_output("git", "-C", here, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if is_dirty else commit


def redacted_command(argv: Sequence[str]) -> list[str]:
    """Return the command line as ``jetspec ...``, with the value of ``--api-key`` and a URL's user blanked."""
    shown = ["jetspec"]
    is_secret = False
    for word in argv[1:]:
        if is_secret:
            shown.append("***")
        elif word.startswith("--api-key="):
            shown.append("--api-key=***")
        else:
            shown.append(without_user(word))
        is_secret = word == "--api-key"
    return shown


def without_user(url: str) -> str:
    """Return a URL, or any word with one in it, without the user and password before its host."""
    return re.sub("://[^/?#]*@", "://***@", url)


def stamp() -> dict[str, Any]:
    """Return hardware, system and versions as plain data."""
    name, flags = processor()
    gpus = command_output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    versions = {package: package_version(package) for package in STAMPED_PACKAGES}
    return {
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "processor": name,
        "processor_features": sorted(f for f in flags if f.startswith(("amx", "avx", "asimd", "sve", "bf16"))),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "gpus": gpus.splitlines(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "versions": {package: version for package, version in versions.items() if version},
        "commit": git_commit(),
    }
