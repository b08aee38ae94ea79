"""A model's chat template: messages in, one prompt text out.

Templates come with the model and run in a sandbox. Message contents are data, never parsed as template code, but
they are not escaped either: ``<|im_end|>`` typed by a user is the special token once the text is encoded, exactly as
in transformers and SGLang. Knows no token ids and no HTTP.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jetspec_engine.errors import ArtifactError, RequestError
from jetspec_engine.models.json_file import JsonFile

TEMPLATE_FILE = "chat_template.jinja"


class GenerationBlock(Extension):
    """The ``{% generation %}`` tag some templates put around answers: its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the tag by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template.

    Args:
        source: the template's text.
        special_tokens: names such as ``bos_token`` that templates may use.
        where: names the template in messages.

    Raises:
        ArtifactError: the template does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, where: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ArtifactError(f"{where}: the chat template does not compile: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt of a conversation, with the opening of the model's answer.

        Raises:
            RequestError: no messages, a message without role or text, or a conversation the template refuses.
        """
        check_messages(messages)
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        # Template code may raise anything; whatever it is, this one conversation caused it.
        except Exception as error:
            raise RequestError(f"messages: the model's chat template refuses them: {error}") from error


def check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise RequestError unless there is a message and each has a role and a text."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError("messages: empty, expected a list with at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{place}]: {type(message).__name__}, expected an object")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise RequestError(f"messages[{place}].{key}: {message.get(key)!r}, expected a string")


def find_template(folder: Path, tokenizer_config: JsonFile | None) -> tuple[str, str] | None:
    """Return (template, where it stands), or None when the model has none.

    ``chat_template.jinja`` comes before the ``chat_template`` of tokenizer_config.json; of several named templates
    there, the one called "default" counts.
    """
    path = folder / TEMPLATE_FILE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path}: cannot be read: {error}") from error
    if tokenizer_config is None or tokenizer_config.values.get("chat_template") is None:
        return None
    value = tokenizer_config.values["chat_template"]
    if isinstance(value, list):
        value = next((item.get("template") for item in value if item.get("name") == "default"), None)
    if not isinstance(value, str):
        tokenizer_config.refuse("chat_template", "a template, or a list with one named default")
    return value, f"{tokenizer_config.name}: chat_template"


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """jinja2's own filter escapes HTML, which a prompt must not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
