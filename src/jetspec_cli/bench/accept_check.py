"""Decodes a few prompts of its own and puts the accept length that the draft head itself expects beside the measured.

A head that promises much more than the target accepts is another model's, or runs otherwise than it was trained
(causality, target layers). Knows nothing of speed or of exactness: those are ``bench`` and ``gate``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jetspec_cli import environment, options
from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.generation import Generation
from jetspec_cli.serving.launcher import ServerProcess
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import EngineError

MAX_NEW_TOKENS = 64
QUESTIONS = {
    "code": "Write a Python function that counts the words of a text.",
    "list": "Name ten things one needs for a week in the mountains, one a line.",
    "prose": "Describe a harbour early in the morning, in one paragraph.",
}
# The linear path itself is drawn without probabilities: a tree that is its whole chain and no more has them.
TREES = {"linear": TreeConfig(width=2, budget=None, keep_spine=True), "tree": TreeConfig()}


def check_accept(settings: Mapping[str, Any], on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Start a server and measure.

    Args:
        settings: ServeConfig fields that were given.
        on_progress: told what the starting server says.

    Returns:
        ``linear`` and ``tree`` (the default tree), each with expected and measured accept length over all prompts,
        and ``classes`` with both by class of text; ``max_new_tokens``.

    Raises:
        JetspecError: the server cannot start, or a request failed.
    """
    config = options.serve_config({**settings, "cache_dir": str(environment.cache_dir())}, list(TREES.values()))
    prompts = [Prompt(prompt_id=name, messages=(("user", text),), text_class=name) for name, text in QUESTIONS.items()]
    arguments = [*options.server_arguments(config), "--no-pull"]
    with ServerProcess(arguments, on_progress=on_progress) as server, ServerClient.connect(server.url) as client:
        found: dict[str, Any] = {"max_new_tokens": MAX_NEW_TOKENS}
        for name, tree in TREES.items():
            client.set_tree(tree)
            answers = {}
            for prompt in prompts:
                client.flush_cache()
                answers[prompt.text_class] = client.generate(prompt, MAX_NEW_TOKENS)
            classes = {text_class: accept([answer]) for text_class, answer in answers.items()}
            found[name] = {**accept(list(answers.values())), "classes": classes}
    return found


def accept(answers: Sequence[Generation]) -> dict[str, float]:
    """Return the accept length that the head expected and the one measured, pooled over rounds.

    Raises:
        EngineError: an answer without the counters.
    """
    rounds = sum(answer.num_rounds or 0 for answer in answers)
    if not rounds or any(answer.expected_accept_length is None for answer in answers):
        raise EngineError("the server's answers lack the counters of speculative decoding")
    promised = sum((answer.expected_accept_length or 0.0) * (answer.num_rounds or 0) for answer in answers)
    emitted = sum(answer.num_emitted_tokens or 0 for answer in answers)
    return {"expected": round(promised / rounds, 2), "measured": round(emitted / rounds, 2)}
