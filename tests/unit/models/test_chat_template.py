"""Chat templates: where they are found, what they may do, and which messages are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from jetspec_engine.errors import ArtifactError, RequestError
from jetspec_engine.models.chat_template import ChatTemplate
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tokenizer import ModelTokenizer
from support.tiny_models import make_tiny_target

USER = [{"role": "user", "content": "hi"}]


def render(source: str, messages: Any = USER, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens, where="test").render(messages)


def load(folder: Path) -> ModelTokenizer:
    return ModelTokenizer.from_folder(folder, DecoderConfig.from_folder(folder))


def test_contents_are_data_never_template_code() -> None:
    content = "{{ 7 * 7 }}{% raise %}{# gone #}"
    assert render("{{ messages[0]['content'] }}", [{"role": "user", "content": content}]) == content


def test_templates_get_special_tokens_and_the_generation_prompt() -> None:
    assert render("{{ bos_token }}{% if add_generation_prompt %}!{% endif %}", bos_token="<s>") == "<s>!"


def test_templates_may_use_what_transformers_offers() -> None:
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{% for m in messages %}{% break %}{% endfor %}ok") == "ok"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "hi"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% if tools is none and documents is none %}none{% endif %}") == "none"
    assert render("{% if true %}\n  {% set x = 1 %}\n{{ x }}{% endif %}") == "1", "blocks leave no white space"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_refusing_or_misbehaving_template_is_the_requests_error(source: str) -> None:
    with pytest.raises(RequestError, match="chat template refuses"):
        render(source)


def test_the_templates_own_words_reach_the_user() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_rendering_does_not_change_the_messages() -> None:
    messages = [{"role": "user", "content": "hi"}]
    render("{% set m = messages[0] %}{{ m.content }}", messages)
    assert messages == USER


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "messages"),
        ("hi", "messages"),
        (None, "messages"),
        ([5], r"messages\[0\]"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([*USER, {"role": "user"}], r"messages\[1\]\.content"),
        ([{"role": "user", "content": None}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], r"messages\[0\]\.content"),
        ([{"role": 1, "content": "x"}], r"messages\[0\]\.role"),
    ],
)
def test_bad_messages_are_refused_by_place(messages: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        render("{{ messages }}", messages)


def test_the_template_file_comes_before_the_settings(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    (folder / "chat_template.jinja").write_text("file:{{ messages[0].content }}é", encoding="utf-8")
    assert load(folder).render_chat(USER) == "file:hié"


def test_of_named_templates_the_default_counts(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    values["chat_template"] = [{"name": "tool_use", "template": "tool"}, {"name": "default", "template": "default"}]
    path.write_text(json.dumps(values))
    assert load(folder).render_chat(USER) == "default"
    values["chat_template"] = [{"name": "tool_use", "template": "tool"}]
    path.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match="chat_template"):
        load(folder)


def test_a_template_that_does_not_compile_is_the_artifacts_error(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ArtifactError, match=r"chat_template\.jinja: the chat template does not compile"):
        load(folder)


def test_a_model_without_a_template_refuses_chats_only(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = load(folder)
    assert not tokenizer.has_chat_template
    assert tokenizer.encode("still works")
    with pytest.raises(RequestError, match="no chat template") as caught:
        tokenizer.render_chat(USER)
    assert caught.value.hint
