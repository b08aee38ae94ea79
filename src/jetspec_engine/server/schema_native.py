"""Bodies of the SGLang-native routes, field names as SGLang 0.5.17 spells them.

Source: the request fields of SGLang's public HTTP API.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from jetspec_engine.server.schema_decoding import DecodingFields, Text, TokenCount, TokenId

DEFAULT_MAX_NEW_TOKENS = 128
MAX_TOP_LOGPROBS = 128


class NativeSampling(DecodingFields):
    """sampling_params: decoding fields in SGLang's names. An unknown key is refused."""

    max_new_tokens: TokenCount | None = Field(
        None, description=f"Cap on emitted tokens (default {DEFAULT_MAX_NEW_TOKENS})."
    )
    min_new_tokens: TokenCount | None = Field(None, description="The text may not end before this many tokens.")
    spaces_between_special_tokens: bool | None = Field(None, description="Accepted; no effect.")
    stream_interval: int | None = Field(None, description="Accepted; every round is streamed.")
    sampling_seed: int | None = Field(None, description="Accepted; greedy decoding has no seed.")


class GenerateBody(BaseModel):
    """A prompt, or several, to continue: exactly one of text and input_ids. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="allow", title="Generate")

    text: Text | list[Text] | None = Field(None, description="One prompt, or a list of prompts.")
    input_ids: list[TokenId] | list[list[TokenId]] | None = Field(None, description="The same as token ids.")
    sampling_params: NativeSampling | list[NativeSampling] | None = Field(
        None, description="One for all prompts, or one a prompt."
    )
    rid: Text | list[Text] | None = Field(None, description="Request id(s), chosen by the caller, to abort by.")
    stream: bool | None = Field(None, description='Server-sent events with the text so far; "[DONE]" at the end.')
    return_logprob: bool | None = Field(None, description="Add log-probabilities (nats) to meta_info.")
    logprob_start_len: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        None, description="First prompt position to report; -1 or absent: output tokens only."
    )
    top_logprobs_num: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        None, description="How many of the likeliest tokens to report at each position."
    )
    return_text_in_logprobs: bool | None = Field(None, description="Spell reported tokens as text too.")


class AbortBody(BaseModel):
    """Which request to abort: one rid, or all."""

    model_config = ConfigDict(strict=True, title="AbortRequest")

    rid: str | None = Field(None, description="The id given to the request; the parts of a batch share it.")
    abort_all: bool | None = Field(None, description="Abort everything that runs or waits.")
