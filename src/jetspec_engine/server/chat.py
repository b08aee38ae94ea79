"""``/v1/chat/completions``: answer a conversation.

Knows OpenAI's chat shapes. Without a cap the answer may run to the end of the context.
Source: OpenAI's public API reference.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from jetspec_engine.errors import RequestError
from jetspec_engine.records import StepEvent, TokenLogprob
from jetspec_engine.server.context import Context, ServerContext
from jetspec_engine.server.openai_common import CHAT, OpenAIJob, answer, finish_name, openai_sampling, token_bytes
from jetspec_engine.server.schema_openai import ChatBody
from jetspec_engine.server.wire import finite

router = APIRouter(tags=["OpenAI-compatible"])


@router.post("/v1/chat/completions", summary="Answer a conversation greedily")
async def chat_completions(body: ChatBody, request: Request, context: Context) -> Response:
    """Answer with n identical choices."""
    context.check_model(body.model)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs: only together with logprobs")
    sampling = openai_sampling(body, default_max_tokens=context.max_seq_len)
    ids = await context.encode_chat(body.messages)
    top_k = (body.top_logprobs or 0) if body.logprobs else None
    job = OpenAIJob.of(context, body, CHAT, prompts=[ids], sampling=sampling, logprobs_top_k=top_k)
    return await answer(job, _ChatShape(job, context, has_logprobs=bool(body.logprobs)), context, request)


class _ChatShape:
    """Choices of a chat answer, whole or in chunks."""

    def __init__(self, job: OpenAIJob, context: ServerContext, *, has_logprobs: bool) -> None:
        self._job = job
        self._context = context
        self._has_logprobs = has_logprobs

    def opening(self) -> list[dict[str, Any]]:
        """Return the choices that open a stream: the role."""
        return self._deltas({"role": "assistant", "content": ""}, None, None)

    def choices(self, index: int) -> list[dict[str, Any]]:
        """Return the finished choices."""
        answer = self._job.answers[index]
        return [
            {
                "index": place,
                "message": {"role": "assistant", "content": answer.text},
                "logprobs": self._logprobs(answer.logprobs),
                "finish_reason": finish_name(answer.finish),
            }
            for place in self._job.places(index)
        ]

    def chunks(self, _: int, event: StepEvent) -> list[dict[str, Any]]:
        """Return the choices to send for one event: its text, then, in a chunk of its own, why it ended."""
        sent = []
        if event.text or (self._has_logprobs and event.logprobs):
            sent += self._deltas({"content": event.text}, self._logprobs(event.logprobs), None)
        if event.finish is not None:
            sent += self._deltas({}, None, finish_name(event.finish))
        return sent

    def _deltas(self, delta: dict[str, Any], logprobs: Any, finish: str | None) -> list[dict[str, Any]]:
        return [
            {"index": place, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            for place in self._job.places(0)
        ]

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        return {
            "content": [
                {
                    **self._token(one.token_id, one.logprob),
                    "top_logprobs": [self._token(token, logprob) for token, logprob in one.top],
                }
                for one in logprobs
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._context.spell(token_id)
        return {"token": text, "logprob": finite(logprob), "bytes": token_bytes(text)}
