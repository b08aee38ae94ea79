"""What a measuring script needs of the machine, asked before it starts or writes anything.

SGLang is asked of its installed metadata, GPUs of CUDA's driver: no torch, no CUDA context. Knows nothing of what is
measured; a script that was given another server's command needs none of it and does not ask.
"""

import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec

from jetspec_cli import console, exit_codes
from jetspec_engine.sglang_backend import backend
from jetspec_engine.sglang_backend.refusals import SUPPORTED_VERSION

SGLANG = f"sglang {SUPPORTED_VERSION}"
GPU = "a CUDA GPU"
HINTS = {SGLANG: "pip install '.[sglang,dev]'", GPU: "run it on a machine where nvidia-smi shows a GPU"}


def exit_without(
    *, sglang: bool = False, gpu: bool = False, packages: Sequence[str] = (), programs: Sequence[str] = ()
) -> None:
    """End the process with exit code 3, one line and a hint where something is missing; else do nothing.

    Args:
        sglang: the one version that the plugin is made for.
        gpu: one that CUDA's driver shows this process.
        packages: Python modules of the extra ``dev``.
        programs: on PATH, or paths.
    """
    found = {
        **({SGLANG: _has_sglang()} if sglang else {}),
        **({GPU: backend.count_gpus() > 0} if gpu else {}),
        **{name: find_spec(name) is not None for name in packages},
        **{name: shutil.which(name) is not None for name in programs},
    }
    missing = [name for name, is_there in found.items() if not is_there]
    if not missing:
        return
    hints = HINTS | dict.fromkeys(packages, "pip install '.[dev]'")
    hints |= {name: f"install {name}, or name its path" for name in programs}
    console.error(
        f"needs {' and '.join(found)}; missing here: {', '.join(missing)}",
        "; ".join(dict.fromkeys(hints[name] for name in missing)), exit_codes.CANNOT_RUN, as_json=False,
    )  # fmt: skip
    sys.exit(exit_codes.CANNOT_RUN)


def _has_sglang() -> bool:
    try:
        return metadata.version("sglang") == SUPPORTED_VERSION
    except metadata.PackageNotFoundError:
        return False
