"""Requests to our own server that run beside each other, with everything a probe may ask for: stops, log-probabilities.

Knows the native route. Answers are waited for one by one; each request has a thread of its own.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any

from jetspec_cli.serving.client import ServerClient
from jetspec_cli.serving.generation import Generation, from_native
from jetspec_cli.serving.transport import shaped

TokenLogprob = tuple[int, float | None, tuple[tuple[int, float | None], ...]]


@dataclass(frozen=True)
class Pending:
    """One request on its way."""

    body: Future[Mapping[str, Any]]

    def generation(self) -> Generation:
        """Wait for the end and return what was decoded. Raises EngineError."""
        return from_native(self.body.result(), 0.0, has_our_counters=True)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Token, log-probability and top candidates of every emitted token; the request must have asked for them."""
        answer = self.body.result()
        return shaped("/generate", lambda: _logprobs_of(answer["meta_info"]))


class Crowd:
    """Many requests to our own server at the same time, and what it counts (``gating.probes.ProbeClient``).

    Args:
        client: of our own server.
    """

    def __init__(self, client: ServerClient) -> None:
        self.info = client.info
        self.set_tree = client.set_tree
        self.flush_cache = client.flush_cache
        self._transport = client.transport

    def submit(self, ids: Sequence[int], *, top_k: int | None = None, **sampling: Any) -> Pending:
        """Send a request with ``SamplingParams`` as keywords and return at once; ``top_k`` asks for logprobs."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in sampling.items()}
        body: dict[str, Any] = {"input_ids": list(ids), "sampling_params": {"temperature": 0, **plain}}
        if top_k is not None:
            body |= {"return_logprob": True, "top_logprobs_num": top_k}
        answer: Future[Mapping[str, Any]] = Future()

        def ask() -> None:
            try:
                answer.set_result(self._transport.ask("POST", "/generate", body))
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=ask, daemon=True).start()
        return Pending(answer)

    def counters(self) -> dict[str, float]:
        """Return the server's metrics under the engine's names: ``pages_total``, ``pages_free``, totals."""
        text = self._transport.send("GET", "/metrics").text
        return shaped("/metrics", lambda: _counted(text))


def _logprobs_of(meta: Mapping[str, Any]) -> list[TokenLogprob]:
    tops = meta.get("output_top_logprobs") or [()] * len(meta["output_token_logprobs"])
    return [
        (token, logprob, tuple((one[1], one[0]) for one in top))
        for (logprob, token, _), top in zip(meta["output_token_logprobs"], tops, strict=True)
    ]


def _counted(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("jetspec_") and "{" not in name:
            found[name.removeprefix("jetspec_").removesuffix("_total")] = float(value)
    # What the probes read, whatever else there is.
    return {**found, "pages_total": found["pages"], **{name: found[name] for name in ("pages_free", "target_forwards")}}
