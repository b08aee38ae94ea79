"""Prompts files: JSON Lines, one prompt a line, checked strictly.

A line holds ``id`` and exactly one of ``prompt`` (text), ``messages`` (a chat) or ``input_ids``; ``class`` and
``max_new_tokens`` are optional; any other key is refused. A byte order mark at the start, CRLF line ends and blank
lines are harmless and accepted; everything else that is odd is refused with file, line and reason.

Knows nothing of tokenizers, servers or what the prompts are for.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetspec_cli.console import printable
from jetspec_engine.config import did_you_mean
from jetspec_engine.errors import ArtifactError

MAX_LINE_BYTES = 1_000_000
KEYS = ("id", "prompt", "messages", "input_ids", "class", "max_new_tokens")
LINE_HINT = 'a line looks like {"id": "a", "prompt": "Hi"}'
CONTENT_KEYS = ("prompt", "messages", "input_ids")


class _LineError(ValueError):
    """A reason why one line is refused."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt; exactly one of text, messages and input_ids is set.

    Attributes:
        prompt_id: unique in its file.
        text: a raw prompt.
        messages: a chat, (role, content) in order.
        input_ids: token ids.
        text_class: kind of text (code, math, chat, prose, ...); empty when the file does not say.
        max_new_tokens: the file's own cap, or None.
    """

    prompt_id: str
    text: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None
    input_ids: tuple[int, ...] | None = None
    text_class: str = ""
    max_new_tokens: int | None = None

    @property
    def content_key(self) -> str:
        """A digest of what is asked, equal for two prompts that ask the same."""
        content = json.dumps([self.text, self.messages, self.input_ids], ensure_ascii=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def read_prompts(path: Path) -> list[Prompt]:
    """Read a prompts file.

    Args:
        path: the file.

    Returns:
        The prompts in file order, at least one.

    Raises:
        ArtifactError: the file is missing, empty, or a line is wrong (``file:line: reason``).
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"prompts file: {path}: {error.strerror or error}", hint=LINE_HINT) from error
    prompts: list[Prompt] = []
    line_of_id: dict[str, int] = {}
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            prompt = parse_line(line)
            if prompt.prompt_id in line_of_id:
                raise _LineError(f"id {prompt.prompt_id!r} was used on line {line_of_id[prompt.prompt_id]}")
        except _LineError as error:
            raise ArtifactError(f"{path}:{number}: {error}", hint=LINE_HINT) from error
        line_of_id[prompt.prompt_id] = number
        prompts.append(prompt)
    if not prompts:
        raise ArtifactError(f"{path}:1: no prompts in this file", hint=LINE_HINT)
    return prompts


def parse_line(line: bytes) -> Prompt:
    """Turn one line into a prompt. Raises a ValueError whose text is the reason."""
    if len(line) > MAX_LINE_BYTES:
        raise _LineError(f"a line of {len(line)} bytes, at most {MAX_LINE_BYTES}")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _LineError(f"byte {error.start + 1} is 0x{line[error.start]:02x}, not UTF-8") from error
    try:
        given = json.loads(text, object_pairs_hook=_no_repeated_keys, parse_constant=_no_constants)
    except _LineError:
        raise
    except json.JSONDecodeError as error:
        raise _LineError(f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno}") from error
    except RecursionError as error:
        raise _LineError("not a prompt: nested too deeply") from error
    except ValueError as error:
        # json refuses integers of thousands of digits this way.
        raise _LineError(f"not a prompt: {error}") from error
    if not isinstance(given, dict):
        raise _LineError(f"expected a JSON object, found {_kind(given)}")
    return _prompt_from(given)


def find_repeats(prompts: Iterable[Prompt]) -> list[tuple[str, str]]:
    """Return (first id, later id) for every prompt that asks the same as an earlier one."""
    first: dict[str, str] = {}
    repeats = []
    for prompt in prompts:
        earlier = first.setdefault(prompt.content_key, prompt.prompt_id)
        if earlier != prompt.prompt_id:
            repeats.append((earlier, prompt.prompt_id))
    return repeats


def warm_up_prompt(prompts: Iterable[Prompt], number: int = 0) -> Prompt:
    """Return a prompt that is not one of these, for requests nobody measures; another one for every number."""
    taken = {prompt.text for prompt in prompts}
    text = f"Before measurement {number} starts, say hello." if number else "Before the measurement starts, say hello."
    while text in taken:
        text += " Again."
    return Prompt(prompt_id="warm-up", text=text, max_new_tokens=4)


def _prompt_from(given: Mapping[str, Any]) -> Prompt:
    for key in given:
        if key not in KEYS:
            raise _LineError(f"unknown key {key!r}; {did_you_mean(key, KEYS) or 'allowed: ' + ', '.join(KEYS)}")
    if "id" not in given:
        raise _LineError("id is missing")
    content = [key for key in CONTENT_KEYS if key in given]
    if len(content) != 1:
        found = "none" if not content else " and ".join(content)
        raise _LineError(f"expected exactly one of {', '.join(CONTENT_KEYS)}, found {found}")
    return Prompt(
        prompt_id=_name(given, "id"),
        text=_text(given, "prompt") if "prompt" in given else None,
        messages=_messages(given["messages"]) if "messages" in given else None,
        input_ids=_input_ids(given["input_ids"]) if "input_ids" in given else None,
        text_class=_name(given, "class") if "class" in given else "",
        max_new_tokens=_positive(given, "max_new_tokens") if "max_new_tokens" in given else None,
    )


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given[key]
    if not isinstance(value, str):
        raise _LineError(f"{key}: expected a string, found {_kind(value)}")
    if not value:
        raise _LineError(f"{key} is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _LineError(f"{key}: half of a surrogate pair at character {error.start + 1}") from error
    return value


def _name(given: Mapping[str, Any], key: str) -> str:
    """Return a text that stands in one line of a table."""
    value = _text(given, key)
    if printable(value) != value or "\n" in value or "\t" in value:
        raise _LineError(f"{key}: {value!r}, expected no control characters")
    return value


def _messages(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise _LineError("messages: expected a list of at least one message")
    turns = []
    for index, message in enumerate(value):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise _LineError(f"messages[{index}]: expected an object with role and content")
        try:
            turns.append((_text(message, "role"), _text(message, "content")))
        except _LineError as error:
            raise _LineError(f"messages[{index}].{error}") from error
    return tuple(turns)


def _input_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise _LineError("input_ids: expected a list of at least one token id")
    for index, token in enumerate(value):
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise _LineError(f"input_ids[{index}]: {token!r}, expected an integer >= 0")
    return tuple(value)


def _positive(given: Mapping[str, Any], key: str) -> int:
    value = given[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _LineError(f"{key}: {value!r}, expected an integer >= 1")
    return value


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _LineError(f"key {key!r} appears twice")
        found[key] = value
    return found


def _no_constants(name: str) -> None:
    raise _LineError(f"{name} is not a JSON value")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
