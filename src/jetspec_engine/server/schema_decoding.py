"""The decoding fields that the native and the OpenAI-compatible bodies share.

Knows field types and ranges only; which values this engine can honour is said in ``decoding_rules``. In all bodies
null means absent, as both families of servers have it.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_STOPS = 64
MAX_CHOICES = 128


def _check_unicode(text: str) -> str:
    # JSON can spell lone surrogates, which are no characters and have no UTF-8.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a lone surrogate, expected Unicode text")
    return text


Text = Annotated[str, AfterValidator(_check_unicode)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
NonEmptyText = Annotated[Text, Field(min_length=1)]
TokenCount = Annotated[int, Field(ge=0, lt=2**31)]


class DecodingFields(BaseModel):
    """How to decode. Every answer of this engine is greedy: an absent temperature means 0."""

    # Unknown keys are kept in model_extra, so that a rule can name the ones that would change the text.
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    temperature: float | None = Field(
        None, ge=0, description="0 or absent. Anything above 0 is refused: sampling is not drafted."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="No effect at temperature 0.")
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="No effect at temperature 0.")
    min_p: float | None = Field(None, ge=0, le=1, description="No effect at temperature 0.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="0 or absent.")
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="0 or absent.")
    repetition_penalty: float | None = Field(None, ge=0, le=2, description="1 or absent.")
    logit_bias: dict[str, float] | None = Field(None, description="Empty or absent.")
    stop: NonEmptyText | Annotated[list[NonEmptyText], Field(max_length=MAX_STOPS)] | None = Field(
        None, description="The text ends before the first of these strings."
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = Field(
        None, description="Token ids that end the text, beside the model's own."
    )
    ignore_eos: bool | None = Field(None, description="Decode through the model's end-of-text token.")
    skip_special_tokens: bool | None = Field(None, description="Leave special tokens out of the text (default true).")
    no_stop_trim: bool | None = Field(None, description="Keep the stop string in the text.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices; greedy ones are identical.")

    @property
    def num_choices(self) -> int:
        """Return how many choices are asked for."""
        return 1 if self.n is None else self.n

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Return the stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def extra_fields(self) -> dict[str, Any]:
        """Return the keys this schema does not know."""
        return dict(self.model_extra or {})
