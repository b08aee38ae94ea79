"""Bodies of the OpenAI-compatible routes, and the error document of every route.

Knows field names, types and ranges. Unknown keys are ignored, as vLLM and SGLang do; known keys that would change
the answer are refused in ``decoding_rules``.
Source: OpenAI's public API reference.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from jetspec_engine.server.schema_decoding import DecodingFields, Text, TokenCount, TokenId

DEFAULT_COMPLETION_TOKENS = 16
MAX_TOP_LOGPROBS = 20


class StreamOptions(BaseModel):
    """What a stream says beside its deltas."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage and no choices.")


class OpenAIFields(DecodingFields):
    """Fields that both OpenAI-compatible bodies have."""

    model: str | None = Field(None, description='The served model\'s id; absent or "default" means that one.')
    max_tokens: TokenCount | None = Field(None, description="Cap on emitted tokens.")
    max_completion_tokens: TokenCount | None = Field(None, description="The newer name of max_tokens; it wins.")
    min_tokens: TokenCount | None = Field(None, description="The text may not end before this many tokens.")
    seed: int | None = Field(None, description="Accepted; greedy decoding has no seed.")
    stream: bool | None = Field(None, description="Answer as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Only with stream.")
    user: str | None = Field(None, description="Accepted; not used.")


class CompletionBody(OpenAIFields):
    """A prompt, or several, to continue."""

    model_config = ConfigDict(title="Completion")

    prompt: Text | list[Text] | list[TokenId] | list[list[TokenId]] = Field(
        description="A text, token ids, or a list of either."
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        None, description="Report each token's log-probability and this many alternatives."
    )
    echo: bool | None = Field(None, description="Put the prompt before the text; not together with logprobs.")
    best_of: int | None = Field(None, description="Absent, or equal to n.")
    suffix: str | None = Field(None, description="Empty or absent.")


class TextPart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]


class ChatBody(OpenAIFields):
    """A conversation to answer."""

    model_config = ConfigDict(title="ChatCompletion")

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = Field(None, description="Report each token's log-probability.")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = Field(
        None, description="How many alternatives beside it; only with logprobs."
    )


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorDocument(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail
