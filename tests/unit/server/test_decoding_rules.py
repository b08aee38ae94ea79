"""Which requests a greedy engine may answer (R15)."""

import pytest

from jetspec_engine.errors import RequestError
from jetspec_engine.server.decoding_rules import REFUSED_FIELDS, refuse_fields, sampling_params
from jetspec_engine.server.schema_decoding import DecodingFields


def resolve(**given: object) -> None:
    sampling_params(DecodingFields.model_validate(given), max_new_tokens=8, min_new_tokens=0)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0},
        {"temperature": 0, "top_p": 0.1, "top_k": 50, "min_p": 0.9},
        {"top_p": 1.0, "top_k": -1, "min_p": 0},
        {"top_k": 1},
        {"top_k": 2**30},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1},
        {"logit_bias": {}},
        {"tools": [], "response_format": None, "regex": ""},
        {"response_format": {"type": "text"}, "tool_choice": "none"},
        {"novel": 1},
    ],
)
def test_R15_greedy_requests_pass(given: dict) -> None:
    resolve(**given)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"temperature": 1e-6}, "temperature"),
        ({"temperature": 0.7, "top_k": 1}, "temperature"),
        ({"top_p": 0.99}, "top_p"),
        ({"top_k": 2}, "top_k"),
        ({"min_p": 0.01}, "min_p"),
        ({"temperature": 0, "frequency_penalty": 0.1}, "frequency_penalty"),
        ({"presence_penalty": -0.1}, "presence_penalty"),
        ({"repetition_penalty": 0.9}, "repetition_penalty"),
        ({"logit_bias": {"1": 0.0}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ],
)
def test_R15_other_requests_are_refused_by_name(given: dict, field: str) -> None:
    with pytest.raises(RequestError, match=rf"^{field}: "):
        resolve(**given)


# What clients of OpenAI, SGLang and vLLM send to change the text; a name may be added to ours, none may go.
CHANGES_THE_TEXT = (
    "regex", "ebnf", "json_schema", "structural_tag", "stop_regex", "response_format", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "structured_outputs", "bad_words", "allowed_token_ids", "tools", "functions",
    "tool_choice", "function_call", "input_embeds", "image_data", "video_data", "audio_data",
    "custom_logit_processor", "logits_processors", "lora_path", "session_params", "use_beam_search", "chat_template",
    "chat_template_kwargs", "continue_final_message",
)  # fmt: skip


def test_R15_nothing_that_changes_the_text_is_missing() -> None:
    assert set(CHANGES_THE_TEXT) <= set(REFUSED_FIELDS)


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
def test_R15_every_refused_field_is_named_with_a_reason(name: str) -> None:
    with pytest.raises(RequestError, match=rf"^{name}: \w"):
        refuse_fields({name: {"some": "value"}})
    for harmless in (None, False, "", [], {}):
        refuse_fields({name: harmless})


def test_minimum_above_maximum_is_refused() -> None:
    with pytest.raises(RequestError, match=r"min_new_tokens: 9, expected at most max_new_tokens \(8\)"):
        sampling_params(DecodingFields.model_validate({}), max_new_tokens=8, min_new_tokens=9)
