"""How long jobs are shown, one after the other: a bar on a terminal, a few lines elsewhere.

Knows labels and amounts, nothing of the jobs.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from jetspec_cli import console


class Meter:
    """Shows what is running now. Use it in a ``with`` block: leaving takes the bar away.

    Args:
        say: receives the lines: each new label, and each further tenth of a job whose total is known.
        can_draw: whether a bar may be drawn where there is a terminal.
    """

    def __init__(self, say: Callable[[str], None] = console.talk, *, can_draw: bool = True) -> None:
        self._say = say
        self._can_draw = can_draw
        self._drawn = ExitStack()
        self._bar: console.Bar | None = None
        self._label, self._tenths = "", -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, label: str, done: int, total: int) -> None:
        """Show a job; a total of 0 is unknown."""
        if total and self._can_draw and console.is_live():
            if self._bar is None:
                self._bar = self._drawn.enter_context(console.bar(label, total))
            self._bar.update(label=label, done=done, total=total)
            return
        self.clear()
        tenths = 10 * done // total if total else 0
        if label != self._label or tenths > self._tenths:
            self._say(f"{label}: {100 * done // total} %" if total else label)
            self._label, self._tenths = label, tenths

    def clear(self) -> None:
        """Take the bar away, if there is one."""
        self._drawn.close()
        self._bar = None
