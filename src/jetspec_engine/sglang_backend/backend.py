"""SGLang as an engine, seen from the registry: whether it can run here, and one server from start to stop.

Deliberately imports nothing of sglang: whether the package is there is asked of its installed metadata, which a
folder that happens to be called ``sglang`` does not have. Knows the child process and nothing inside it.
"""

import ctypes
from collections.abc import Callable
from importlib import metadata

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import UnavailableError
from jetspec_engine.records import Availability, ServeEvent
from jetspec_engine.sglang_backend.refusals import SUPPORTED_VERSION

INSTALL_HINT = "pip install 'jetspec[sglang]' on a machine with CUDA, or use --engine embedded"


class SglangBackend:
    """The SGLang engine's place in the registry."""

    name = "sglang"

    def availability(self, config: ServeConfig) -> Availability:
        """Say what is missing: the package, its one version, a GPU that CUDA's driver shows.

        Args:
            config: not looked at.
        """
        del config
        try:
            version = metadata.version("sglang")
        except metadata.PackageNotFoundError:
            return Availability(is_available=False, missing=("package sglang",), hint=INSTALL_HINT)
        if version != SUPPORTED_VERSION:
            return Availability(
                is_available=False,
                missing=(f"sglang {SUPPORTED_VERSION}, found {version}",),
                hint=f"pip install 'sglang=={SUPPORTED_VERSION}'",
            )
        if not count_gpus():
            return Availability(
                is_available=False, missing=("a GPU with CUDA",), hint="use --engine embedded, or check the driver"
            )
        return Availability(is_available=True)

    def serve(self, config: ServeConfig, on_event: Callable[[ServeEvent], None]) -> None:
        """Pull what is missing, start SGLang with our plugin, say "ready", and block until SIGINT or SIGTERM.

        Args:
            config: what to serve; port 0 picks a free port.
            on_event: receives progress, log lines that matter, ready (message: the URL; info) and stopped; log lines
                come on a thread of their own.

        Raises:
            UnavailableError: sglang, a GPU or the port is not to be had.
            ConfigError: something the engine cannot do.
            ArtifactError: the models do not belong together.
            EngineError: the server failed; one line with its own reason.
        """
        found = self.availability(config)
        if not found.is_available:
            raise UnavailableError(f"engine sglang: missing {found.missing[0]}", hint=found.hint)
        from jetspec_engine.sglang_backend import hosting, launch
        from jetspec_engine.sglang_backend.models import find_models

        gpu = launch.choose_gpu(config, launch.probe_free_memory())
        # Asked twice: a taken port is found before anything is pulled, and a free one may be taken meanwhile.
        hosting.free_port(config.host, config.port)
        target, head = find_models(config, lambda progress: on_event(ServeEvent.of(progress)))
        port = hosting.free_port(config.host, config.port)
        words = launch.server_words(config, target=target, head=head, port=port, gpu=gpu)
        hosting.host_server([*launch.SERVER_COMMAND, *words], config, port, on_event)


def count_gpus() -> int:
    """Return how many GPUs CUDA's driver shows this process, as CUDA_VISIBLE_DEVICES lets it. Needs no torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    is_well = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if is_well else 0
