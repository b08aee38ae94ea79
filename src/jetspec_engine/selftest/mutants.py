"""What a mutant is: a named fault, and the attributes of the engine that are swapped while it is in force.

Knows nothing of what checks it. Patches are process-wide: one mutant at a time, applied before its engine is built and
removed after that is closed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Patch = tuple[Any, str, Any]
"""(owner, attribute, replacement)."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One seeded fault.

    Attributes:
        name: short and unique.
        fault: what is wrong, one line.
        patches: makes the patches, with fresh state where they hold any.
        dtype: in which the fault matters.
        subject: the target it is tried on, dense or hybrid.
        not_applicable: why it cannot be tried on this engine; empty when it can.
    """

    name: str
    fault: str
    patches: Callable[[], Sequence[Patch]]
    dtype: str = "float32"
    subject: str = "dense"
    not_applicable: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Keep the fault in force inside the block."""
        originals: list[Patch] = []
        try:
            for owner, name, replacement in self.patches():
                originals.append((owner, name, vars(owner)[name]))
                setattr(owner, name, replacement)
            yield
        finally:
            for owner, name, original in reversed(originals):
                setattr(owner, name, original)


class MutantTable:
    """Mutants of one area, in the order they are declared."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []

    def add(
        self, fault: str, *, subject: str = "dense"
    ) -> Callable[[Callable[[], Sequence[Patch]]], Callable[[], Sequence[Patch]]]:
        """Declare a mutant, named as the decorated function, which returns its patches."""

        def declare(patches: Callable[[], Sequence[Patch]]) -> Callable[[], Sequence[Patch]]:
            name = patches.__name__.replace("_", "-")
            self.mutants.append(Mutant(name=name, fault=fault, patches=patches, subject=subject))
            return patches

        return declare

    def add_not_applicable(self, name: str, fault: str, why: str) -> None:
        """Declare a fault that this engine cannot have yet."""
        self.mutants.append(Mutant(name=name, fault=fault, patches=list, not_applicable=why))
