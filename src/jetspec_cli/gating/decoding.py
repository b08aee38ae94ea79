"""Decodes one prompt on one side: tree switched, cache flushed, failures recorded instead of raised.

A server that is gone fails what is left without asking it again. Knows nothing of comparing.
"""

from dataclasses import replace

from jetspec_cli.gating.checks import RunChecks
from jetspec_cli.gating.records import Record, Run
from jetspec_cli.gating.sides import Sides
from jetspec_cli.gating.spec import GateSpec
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import BusyError, EngineError

DEFAULT_MAX_NEW_TOKENS = 128


class Decoder:
    """Decodes prompts and puts every run into the record, checked by itself.

    Args:
        spec, sides: what is run, and where.
        record: mutated.

    Attributes:
        repeat: how often every prompt is decoded.
    """

    def __init__(self, spec: GateSpec, sides: Sides, record: Record) -> None:
        self.repeat = spec.repeat
        self._spec = spec
        self._sides = sides
        self._record = record
        self._checks = RunChecks(record)
        self._why_gone: dict[int, str] = {}

    def decode(self, prompt: Prompt, role: str, label: str, tree: TreeConfig | None, attempt: int) -> Run:
        """Decode once and record it; a failed request is a run without a generation."""
        client = self._sides.oracle if role == "oracle" else self._sides.candidate
        asked = Run(
            dtype=self._sides.dtype,
            prompt_id=prompt.prompt_id,
            text_class=prompt.text_class,
            role=role,
            label=label,
            tree=None if tree is None else tree.to_mapping(),
            attempt=attempt,
            is_cache_flushed=False,
        )
        run = self._attempt(client, asked, prompt, tree)
        self._record.runs.append(run)
        self._checks.check(prompt, run, client)
        return run

    def prepare(self, client: ServerClient, tree: TreeConfig | None) -> bool:
        """Switch the tree (None: leave it) and flush the cache; False when its state is unknown."""
        if tree is not None:
            client.set_tree(tree)
        return client.flush_cache()

    def cap(self, prompt: Prompt) -> int:
        """Return a prompt's max_new_tokens: the spec's, else its own, else the default."""
        return self._spec.max_new_tokens or prompt.max_new_tokens or DEFAULT_MAX_NEW_TOKENS

    def _attempt(self, client: ServerClient, asked: Run, prompt: Prompt, tree: TreeConfig | None) -> Run:
        if id(client) in self._why_gone:
            return replace(asked, error=self._why_gone[id(client)])
        try:
            is_flushed = self.prepare(client, tree)
            generation = client.generate(self._sides.as_sent(client, prompt), self.cap(prompt))
        except (EngineError, BusyError) as error:
            why_gone = self._sides.why_gone(client)
            if why_gone:
                self._why_gone[id(client)] = why_gone
            return replace(asked, error=why_gone or error.what)
        return replace(asked, is_cache_flushed=is_flushed, generation=generation)
