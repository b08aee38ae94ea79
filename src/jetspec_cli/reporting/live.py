"""Progress of a long run on stderr: a moving bar on a terminal, elsewhere a line a prompt.

A prompt that takes long, being decoded by many cells, has lines between: one a generation at most, and not often.
"""

import time
from collections.abc import Mapping
from typing import Any

from jetspec_cli import console
from jetspec_cli.reporting.outputs import Outputs

# Where nobody watches a bar, this long without a line makes people think that nothing happens.
QUIET_S = 10.0


class Live:
    """Tells how a gate run goes, and keeps its document after every prompt.

    Args:
        bar: drawn on a terminal, silent elsewhere.
        outputs: for the document so far.
        num_prompts: of the set.
    """

    def __init__(self, bar: console.Bar, outputs: Outputs, num_prompts: int) -> None:
        self._bar = bar
        self._outputs = outputs
        self._num_prompts = num_prompts
        self._num_done = 0
        self._started = 0.0
        self._left = ""
        self._said_at = 0.0

    def on_start(self, message: str) -> None:
        """A server is being started or reached, decodes from now on, or is probed."""
        self._num_done, self._started, self._left = 0, time.monotonic(), ""
        self._said_at = self._started
        self._bar.say(message)

    def on_progress(self, message: str) -> None:
        """The starting server says something."""
        self._bar.say(message)

    def on_step(self, step: Any) -> None:
        """A generation is done; time left counts from the first one on."""
        if step.num_done == 1:
            self._started = time.monotonic()
        else:
            seconds = (time.monotonic() - self._started) / (step.num_done - 1) * (step.num_total - step.num_done)
            self._left = f", about {seconds:.0f} s left" if seconds >= 1 else ""
        self._bar.update(label=f"{step.prompt_id}: {step.label}", done=step.num_done, total=step.num_total)
        if time.monotonic() - self._said_at >= QUIET_S:
            self._say(f"{step.prompt_id}, {step.label}: {step.num_done}/{step.num_total} generations done{self._left}")

    def on_prompt(self, prompt_id: str, verdicts: Mapping[str, int], document: Mapping[str, Any]) -> None:
        """A prompt is done."""
        self._num_done += 1
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in verdicts.items())
        self._say(f"prompt {self._num_done}/{self._num_prompts} {prompt_id}: {counts}{self._left}")
        try:
            self._outputs.keep(document)
        except OSError as error:
            # The run goes on: at its end the verdict is shown whatever the disk holds.
            console.talk(f"not kept so far: {error.filename}: {error.strerror}")

    def on_evidence(self, evidence: Mapping[str, Any], document: Mapping[str, Any]) -> str:
        """A mismatch was investigated."""
        folder = self._outputs.keep_evidence(evidence, document)
        self._bar.say(f"evidence of a mismatch: {folder}")
        return folder

    def _say(self, line: str) -> None:
        """Say how far the run is where no bar shows it."""
        if not console.is_live():
            console.talk(line)
        self._said_at = time.monotonic()
