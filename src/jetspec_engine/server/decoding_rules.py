"""What this engine refuses because it would have to answer with other text (R15), and what it decodes.

Only greedy decoding is drafted here, so a request that asks for sampling, for penalties that depend on the path, or
for a grammar gets a 400 that names the field. Filters that cannot change a greedy choice (top_p, top_k, min_p) pass
when temperature is given as 0; without a temperature they mean that the caller expects sampling, and are refused.
"""

from typing import Any

from jetspec_engine.errors import RequestError
from jetspec_engine.records import SamplingParams
from jetspec_engine.server.schema_decoding import DecodingFields

SAMPLING_NOTE = "greedy only: temperature 0 or absent; an absent temperature means 0 here"

_PATH_DEPENDENT = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
_FILTERS: dict[str, tuple[float, ...]] = {"top_p": (1.0,), "top_k": (-1, 0, 1), "min_p": (0.0,)}
_ALL_CANDIDATES = 1 << 30  # SGLang's spelling of "top_k: no limit"

_GRAMMAR = "decoding under a grammar is not drafted"
_TOOLS = "tool calls are not supported"
_INPUTS = "only text is read"
_PLUGINS = "custom processors and adapters are not supported"
_TEMPLATE = "the chat template is used as it is, with a generation prompt"

# Field names of the OpenAI, SGLang and vLLM bodies that would change the text or the shape of the answer.
REFUSED_FIELDS = {
    "regex": _GRAMMAR, "ebnf": _GRAMMAR, "json_schema": _GRAMMAR, "structural_tag": _GRAMMAR, "stop_regex": _GRAMMAR,
    "response_format": _GRAMMAR, "guided_json": _GRAMMAR, "guided_regex": _GRAMMAR, "guided_choice": _GRAMMAR,
    "guided_grammar": _GRAMMAR, "structured_outputs": _GRAMMAR, "bad_words": _GRAMMAR, "allowed_token_ids": _GRAMMAR,
    "tools": _TOOLS, "functions": _TOOLS, "tool_choice": _TOOLS, "function_call": _TOOLS,
    "input_embeds": _INPUTS, "image_data": _INPUTS, "video_data": _INPUTS, "audio_data": _INPUTS, "audio": _INPUTS,
    "modalities": _INPUTS, "custom_logit_processor": _PLUGINS, "logits_processors": _PLUGINS, "lora_path": _PLUGINS,
    "custom_params": _PLUGINS, "session_params": _PLUGINS, "token_ids_logprob": _PLUGINS,
    "return_hidden_states": _PLUGINS, "return_sampling_mask": _PLUGINS, "prompt_logprobs": _PLUGINS,
    "use_beam_search": "beam search is not supported", "prediction": "predicted outputs are not supported",
    "chat_template_kwargs": _TEMPLATE, "chat_template": _TEMPLATE, "continue_final_message": _TEMPLATE,
}  # fmt: skip
_HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
}


def refuse_other_text(fields: DecodingFields) -> None:
    """Raise RequestError naming the first field that asks for anything but greedy decoding."""
    if fields.temperature is not None and fields.temperature > 0:
        raise RequestError(
            f"temperature: {fields.temperature:g}, expected 0 or absent", hint="this engine drafts greedy decoding only"
        )
    for name, neutral in _PATH_DEPENDENT.items():
        value = getattr(fields, name)
        if value is not None and value != neutral:
            raise RequestError(
                f"{name}: {value:g}, expected {neutral:g} or absent", hint="penalties that depend on the path change it"
            )
    if fields.temperature is None:
        _refuse_filters(fields)
    if fields.logit_bias:
        raise RequestError("logit_bias: not supported, expected it empty or absent")
    refuse_fields(fields.extra_fields())


def _refuse_filters(fields: DecodingFields) -> None:
    """Raise RequestError for a sampling filter that comes without a temperature."""
    for name, harmless in _FILTERS.items():
        value = getattr(fields, name)
        if value is not None and value not in harmless and value != _ALL_CANDIDATES:
            raise RequestError(
                f"{name}: {value:g} without a temperature asks for sampling", hint="send temperature 0 beside it"
            )


def refuse_fields(extra: dict[str, Any]) -> None:
    """Raise RequestError for the first known field that would change the answer; unknown ones pass."""
    for name, value in extra.items():
        reason = REFUSED_FIELDS.get(name)
        if reason is not None and value and value not in _HARMLESS_VALUES.get(name, ()):
            raise RequestError(f"{name}: {reason}", hint=f"leave out {name}")


def sampling_params(fields: DecodingFields, *, max_new_tokens: int, min_new_tokens: int) -> SamplingParams:
    """Return the engine's record of a request's decoding fields.

    Raises:
        RequestError: a field asks for anything but greedy decoding, or the counts contradict each other.
    """
    refuse_other_text(fields)
    if min_new_tokens > max_new_tokens:
        raise RequestError(f"min_new_tokens: {min_new_tokens}, expected at most max_new_tokens ({max_new_tokens})")
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        stop=fields.stop_strings,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        skip_special_tokens=fields.skip_special_tokens is not False,
        no_stop_trim=bool(fields.no_stop_trim),
    )
