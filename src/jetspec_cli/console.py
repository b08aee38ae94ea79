"""Where everything printed goes through: stdout is data, stderr is talk.

Text comes from anywhere (model names, prompt ids, another server's errors): what would steer a terminal, or what its
encoding lacks, is written as JSON's escape. Knows nothing of what is printed. Rich is imported when a bar is drawn,
not before.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

# Control characters but for tab and line feed, marks that turn the direction of writing, halves of surrogate pairs.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, encoding: str = "utf-8") -> str:
    """Return text that only shows itself, in characters that an encoding has; JSON stays the same JSON."""
    text = STEERING.sub(_escaped, text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(one if _has(encoding, one) else json.dumps(one)[1:-1] for one in text)
    return text


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1]


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def write(stream: TextIO, text: str, style: str = "") -> None:
    """Write text and a newline. A reader that went away (``| head``) does not change the command's exit code."""
    text = printable(text, getattr(stream, "encoding", None) or "utf-8")
    if style:
        from rich.style import Style

        text = Style.parse(style).render(text)
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        # Python flushes stdout once more at exit and would complain; give that flush a place to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def data(text: str, style: str = "") -> None:
    """Write to stdout what the command was asked for; in a style of rich's where colour is wanted."""
    write(sys.stdout, text, style if can_color() else "")


def data_json(document: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """Write one JSON object to stdout; ``indent=None`` keeps it on one line."""
    data(json.dumps(document, indent=indent, ensure_ascii=False))


def talk(text: str) -> None:
    """Write to stderr what a person may want to know meanwhile."""
    write(sys.stderr, text)


def error(what: str, hint: str, code: int, *, as_json: bool) -> None:
    """Report a failure: one line and a hint on stderr, or one JSON object on stdout."""
    if as_json:
        data_json({"error": {"exit_code": code, "what": what, "hint": hint}}, indent=None)
    else:
        talk(f"error: {what}" + (f"\n\nhint: {hint}" if hint else ""))


def is_live() -> bool:
    """Say whether moving progress may be drawn: stderr is a terminal and this is not a CI job."""
    is_dumb = os.environ.get("TERM") == "dumb"
    return sys.stderr.isatty() and not os.environ.get("CI") and not is_dumb


def can_color() -> bool:
    """Say whether stdout may carry colour codes."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Bar:
    """A progress bar with time left; silent where nobody watches."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress = progress
        self._task = task

    def update(self, *, label: str | None = None, done: float | None = None, total: float | None = None) -> None:
        """Change the label, the amount done or the total; None leaves a value as it is."""
        if self._progress is not None:
            shown = None if label is None else printable(label)
            self._progress.update(self._task, description=shown, completed=done, total=total)

    def say(self, message: str) -> None:
        """Tell what goes on: as the label where the bar is drawn, as a line elsewhere."""
        if self._progress is None:
            talk(message)
        else:
            self.update(label=message)


@contextmanager
def bar(label: str, total: float | None) -> Iterator[Bar]:
    """Draw a progress bar on stderr while the block runs."""
    if not is_live():
        yield Bar(None, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, progress.add_task(printable(label), total=total))
