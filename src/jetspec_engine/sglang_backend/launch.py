"""The SGLang server as a child process: which GPU, which command line, and what to make of what it says.

Knows SGLang by its command line only. The child inherits the environment untouched, so ``CUDA_VISIBLE_DEVICES`` and
tokens are the caller's; GPUs are counted by a probe that inherits it as well.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import ConfigError, UnavailableError
from jetspec_engine.sglang_backend.args import ALGORITHM, TreeSettings, option_words

SERVER_COMMAND = (sys.executable, "-m", "sglang.launch_server")
PROBE = """
import json, torch
print(json.dumps([torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]))
"""
PROBE_TIMEOUT_S = 120.0
TP_OPTIONS = ("--tp-size", "--tensor-parallel-size", "--tp")
# Options that this module sets itself; given again after "--", SGLang would take the last one without a word.
OWN_OPTIONS = (
    "--model-path",
    "--model",
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--host",
    "--port",
)
# Graphs are captured for these numbers of nodes too, so that a tree that is switched to verifies few rows in vain.
GRAPH_BUDGETS = (32, 64, 128, 256)
REASON = re.compile(r"^(?:\S+\.)?\w*(?:Error|Exception|Interrupt|Killed)\b.*")
MATTERS = re.compile(r"jetspec|dflash|capture|weight|error|exception|out of memory|kv cache", re.IGNORECASE)


def probe_free_memory(command: Sequence[str] = (sys.executable, "-c", PROBE)) -> list[int]:
    """Return the free bytes of every GPU this process may use, by CUDA's number under ``CUDA_VISIBLE_DEVICES``.

    Raises:
        UnavailableError: torch cannot be asked, or there is none.
    """
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"CUDA: cannot be asked for its GPUs: {error}", hint="jetspec doctor") from error
    if ran.returncode:
        raise UnavailableError(f"CUDA: {why_it_ended(ran.stderr.splitlines())}", hint="jetspec doctor")
    free: list[int] = json.loads(ran.stdout.splitlines()[-1])
    if not free:
        raise UnavailableError("CUDA: no GPU is visible", hint="use --engine embedded, or check CUDA_VISIBLE_DEVICES")
    return free


def choose_gpu(config: ServeConfig, free: Sequence[int]) -> int:
    """Return the first GPU to use.

    Args:
        config: ``device`` cuda:N names it; otherwise one GPU takes the emptiest, several start at 0.
        free: free bytes by GPU, as ``probe_free_memory`` returns them.

    Raises:
        UnavailableError: there are fewer GPUs than asked for.
        ConfigError: a device that is no GPU.
    """
    device, _, number = config.device.partition(":")
    if device not in ("auto", "cuda") or (number and not number.isdecimal()):
        raise ConfigError(f"device: {config.device!r}, the sglang engine needs auto, cuda or cuda:N")
    count = tensor_parallel_size(config.extra_args)
    first = int(number) if number else (max(range(len(free)), key=free.__getitem__) if count == 1 else 0)
    if first + count > len(free):
        raise UnavailableError(
            f"device: {config.device} with {count} GPUs, {len(free)} visible", hint="check CUDA_VISIBLE_DEVICES"
        )
    return first


def tensor_parallel_size(extra_args: Sequence[str]) -> int:
    """Return the tensor parallel size among the options passed through, 1 without one. Raises ConfigError."""
    value = "1"
    for word, following in zip(extra_args, [*extra_args[1:], ""], strict=False):
        option, _, inline = word.partition("=")
        if option in TP_OPTIONS:
            value = inline or following
    if not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"--tp-size: {value!r}, expected a positive integer")
    return int(value)


def server_words(config: ServeConfig, *, target: Path, head: Path, port: int, gpu: int) -> list[str]:
    """Return what follows ``sglang.launch_server`` for a configuration.

    Args:
        config: what to serve; its options after ``--`` come last.
        target, head: model folders.
        port: a free port.
        gpu: the first GPU.

    Raises:
        ConfigError: a scripted drafter, or an option after ``--`` that has a name of ours.
    """
    if config.drafter != "head":
        raise ConfigError(f"drafter: {config.drafter!r}, the sglang engine has head only", hint="use --engine embedded")
    for word in config.extra_args:
        if word.partition("=")[0] in OWN_OPTIONS:
            raise ConfigError(f"options after --: {word}, which jetspec sets itself", hint="jetspec serve --help")
    words = [
        f"--model-path={target}", f"--speculative-algorithm={ALGORITHM}", f"--speculative-draft-model-path={head}",
        f"--host={config.host}", f"--port={port}", f"--base-gpu-id={gpu}",
        f"--max-running-requests={config.max_running}", *option_words(settings_of(config)),
    ]  # fmt: skip
    if config.dtype != "auto":
        words.append(f"--dtype={config.dtype}")
    if config.page_size != ServeConfig.page_size:
        words.append(f"--page-size={config.page_size}")
    if config.max_seq_len is not None:
        words.append(f"--context-length={config.max_seq_len}")
    return [*words, *config.extra_args]


def settings_of(config: ServeConfig) -> TreeSettings:
    """Return the plugin's settings for a configuration: its tree's budget, the largest and steps are captured."""
    budgets = set()
    if config.max_width > 1:
        budgets = {config.max_budget, *(budget for budget in GRAPH_BUDGETS if budget < config.max_budget)}
    if config.tree.width > 1 and config.tree.budget is not None:
        budgets.add(config.tree.budget)
    return TreeSettings(tree=config.tree, max_width=config.max_width, budgets=tuple(sorted(budgets)))


def why_it_ended(lines: Iterable[str]) -> str:
    """Return the line that says most about a failure: the last exception, else the last words."""
    said = [line.strip() for line in lines if line.strip()]
    reasons = [line for line in said if REASON.match(line)]
    return (reasons or said or ["it said nothing"])[-1]


def is_worth_showing(line: str) -> bool:
    """Say whether a line of the server's log tells how far it is or what went wrong."""
    return MATTERS.search(line) is not None
