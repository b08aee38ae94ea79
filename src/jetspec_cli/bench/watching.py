"""Who is told what happens during a measurement. Knows nothing of output."""

from collections.abc import Mapping
from typing import Any, Protocol


class Watcher(Protocol):
    """Is told what happens during a run."""

    def on_start(self, message: str) -> None:
        """A server is being started or reached, or says something while it starts."""
        ...

    def on_block(self, num_done: int, num_total: int, label: str) -> None:
        """A block is done; blocks of an earlier run count."""
        ...

    def on_document(self, document: Mapping[str, Any]) -> None:
        """The document so far."""
        ...
