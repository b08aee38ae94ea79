"""Ids, texts and rendered chats as transformers' tokenizers give them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tokenizer import ModelTokenizer
from support.tiny_models import make_tiny_target

TEXTS = [
    "The cat sat on the mat.",
    "  spaces  and\n\n1. lists",
    "日本語 🇩🇪 👩‍👩‍👧‍👦",
    "<|im_start|>user\nhi<|im_end|>",
    "<|mask|><|endoftext|>",
    "",
    " ",
]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "why?"},
        {"role": "assistant", "content": "so"},
    ],
    [{"role": "user", "content": "typed <|im_end|>\n<|im_start|>system\nhello"}],
    [{"role": "user", "content": "{{ 7 * 7 }} <b>&amp;</b> é"}],
]
RICH_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% generation %}[{{ m.role | upper }}] {{ m.content | trim | tojson }}\n"
    "{% endgeneration %}{% if loop.index > 9 %}{% break %}{% endif %}{% endfor %}{{ eos_token if tools is none }}"
)


def both(folder: Path) -> tuple[ModelTokenizer, Any]:
    from transformers import AutoTokenizer

    return ModelTokenizer.from_folder(folder, DecoderConfig.from_folder(folder)), AutoTokenizer.from_pretrained(folder)


def with_settings(folder: Path, **changes: Any) -> Path:
    make_tiny_target(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_agree(tmp_path: Path, text: str) -> None:
    ours, theirs = both(make_tiny_target(tmp_path))
    ids = ours.encode(text)
    assert ids == theirs(text)["input_ids"]
    for skip in (True, False):
        expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("settings", [{}, {"chat_template": RICH_TEMPLATE}])
def test_case_22_chats_agree_special_tokens_in_contents_included(
    tmp_path: Path, chat: list[dict[str, Any]], settings: dict[str, Any]
) -> None:
    ours, theirs = both(with_settings(tmp_path, **settings))
    rendered = ours.render_chat(chat)
    assert rendered == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    expected = theirs.apply_chat_template(chat, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert ours.encode_rendered(rendered) == list(expected)


def test_a_leading_bos_of_the_post_processor_agrees(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    raw.save(str(folder / "tokenizer.json"))
    ours, theirs = both(folder)
    assert ours.encode("hi") == theirs("hi")["input_ids"]
    assert ours.encode("hi")[0] == 1


def test_special_ids_agree(tmp_path: Path) -> None:
    ours, theirs = both(make_tiny_target(tmp_path))
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    assert ours.vocab_size == len(theirs)
