"""SGLang as an engine, seen from the registry: for now it only says that it cannot run.

Deliberately imports nothing of sglang: whether the package is there is asked of its installed metadata, which a
folder that happens to be called ``sglang`` does not have.
"""

from collections.abc import Callable
from importlib import metadata

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import UnavailableError
from jetspec_engine.records import Availability, ServeEvent

INSTALL_HINT = "pip install 'jetspec[sglang]' on a machine with CUDA, or use --engine embedded"


class SglangBackend:
    """The SGLang engine's place in the registry; the plugin itself is not part of this release."""

    name = "sglang"

    def availability(self, config: ServeConfig) -> Availability:
        """Say what is missing; never available in this release.

        Args:
            config: not looked at yet.
        """
        del config
        try:
            metadata.version("sglang")
        except metadata.PackageNotFoundError:
            return Availability(is_available=False, missing=("package sglang",), hint=INSTALL_HINT)
        return Availability(
            is_available=False,
            missing=("the SGLang plugin, which this release does not have yet",),
            hint="use --engine embedded",
        )

    def serve(self, config: ServeConfig, on_event: Callable[[ServeEvent], None]) -> None:
        """Refuse to serve.

        Raises:
            UnavailableError: always.
        """
        del on_event
        availability = self.availability(config)
        raise UnavailableError(f"engine sglang: missing {availability.missing[0]}", hint=availability.hint)
