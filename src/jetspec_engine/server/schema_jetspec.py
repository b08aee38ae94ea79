"""Bodies of JetSpec's own routes. Unknown keys are errors here."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from jetspec_engine.config import MAX_TREE_WIDTH
from jetspec_engine.server.schema_decoding import Text, TokenId
from jetspec_engine.server.schema_openai import Message

MAX_SCORE_TOP_K = 128


class TreeBody(BaseModel):
    """A tree configuration; an absent key has its default. Documents the route, ``TreeConfig`` checks the values."""

    model_config = ConfigDict(title="Tree", extra="forbid")

    rule: str = Field("best_first", description="best_first, top2gap (the default beside beta or g0) or accum_logp.")
    width: int = Field(8, ge=1, description="Candidates kept per depth; 1 is the linear path.")
    budget: int | None = Field(16, ge=1, description="Most nodes, root included; null: D + 1; 1: plain decoding.")
    beta: float = Field(1.0, description="Slope of the top2gap rule.")
    g0: float = Field(1.0, description="Gap in nats at which top2gap keeps half the width.")
    keep_spine: bool = Field(False, description="Keep the whole top-1 chain.")


class ScoreBody(BaseModel):
    """Token ids to teacher-force in one forward."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Score")

    input_ids: Annotated[list[TokenId], Field(min_length=2)]
    start: Annotated[int, Field(ge=1, lt=2**31)] = Field(1, description="First position to report.")
    top_k: Annotated[int, Field(ge=1, le=MAX_SCORE_TOP_K)] = Field(2, description="Top logits to report.")


class ExamineBody(BaseModel):
    """A prompt to decode again under observation, and the emitted token in doubt."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Examine")

    input_ids: Annotated[list[TokenId], Field(min_length=1)]
    max_new_tokens: Annotated[int, Field(ge=1, lt=2**31)] = Field(description="As in the run in doubt.")
    position: Annotated[int, Field(ge=0, lt=2**31)] = Field(description="Index of the token among the emitted ones.")
    emitted: list[TokenId] = Field([], description="What that run emitted, to see whether it repeats itself.")
    has_reference: bool = Field(True, description="Also check every operation; reads the weights once more.")


class RenderBody(BaseModel):
    """A prompt to turn into token ids: exactly one of text and messages."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Render")

    text: Text | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None


class DetokenizeBody(BaseModel):
    """Token ids to turn into text."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Detokenize")

    ids: list[TokenId]
    skip_special_tokens: bool = False


class ProfileBody(BaseModel):
    """A prompt whose rounds are profiled, to the end of the context or until both passes are done."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Profile")

    input_ids: Annotated[list[TokenId], Field(min_length=1)]
    num_rounds: Annotated[int, Field(ge=1, le=1000)] = Field(20, description="Rounds of each pass.")


class RecordBody(BaseModel):
    """A prompt to answer plainly, keeping what the drafter offers at every token."""

    model_config = ConfigDict(strict=True, extra="forbid", title="Record")

    input_ids: Annotated[list[TokenId], Field(min_length=1)]
    max_new_tokens: Annotated[int, Field(ge=1, lt=2**31)] = 128
    width: Annotated[int, Field(ge=1, le=MAX_TREE_WIDTH)] = Field(8, description="Candidates to keep per depth.")
