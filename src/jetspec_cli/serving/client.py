"""What one server can do and what it answers, seen over HTTP. Needs no torch.

Three kinds are told apart: ours (``/get_server_info`` has the key ``jetspec``), SGLang-native, OpenAI-compatible. What
one lacks (ids, flush, trees, scores) is said by None or False, never guessed. Knows nothing of comparing or verdicts.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from jetspec_cli.prompts import Prompt
from jetspec_cli.serving.describe import info_of_stock
from jetspec_cli.serving.direct import Arrival
from jetspec_cli.serving.generation import Generation, from_native, from_openai, rounds_of
from jetspec_cli.serving.transport import Transport, message_of, object_of, shaped
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import BusyError, ConfigError, EngineError
from jetspec_engine.records import Recording

BUSY_PATIENCE_S = 10.0
NOT_OFFERED = (404, 405, 501)
# Told no time, SGLang refuses while the last request is on its way out.
FLUSH_PATHS = {"jetspec": "/flush_cache", "sglang": f"/flush_cache?timeout={BUSY_PATIENCE_S:.0f}"}


@dataclass(frozen=True, kw_only=True)
class Score:
    """Teacher-forced logits at one position; ``top`` holds (token id, logit, logprob), best first."""

    position: int
    token_id: int
    logit: float
    logprob: float
    top: tuple[tuple[int, float, float], ...]


class ServerClient:
    """One server. Make it with ``connect``; use it in a ``with`` block or close it.

    Attributes:
        kind: jetspec, sglang or openai.
        info: what the server says of itself.
        can_flush: False once a cache flush was refused or is not offered.
        transport: the connections.
    """

    def __init__(self, transport: Transport) -> None:
        self.url = transport.url
        self.kind = "openai"
        self.info: Mapping[str, Any] = {}
        self.can_flush = True
        self.transport = transport
        self._model = ""
        self._rendered: dict[str, tuple[int, ...] | None] = {}

    @classmethod
    def connect(cls, url: str, *, api_key: str | None = None, timeout_s: float = 600.0, model: str = "") -> Self:
        """Reach a server and find out its kind; ``model`` is asked for where the server's own list does not tell.

        Raises:
            ConfigError: the URL is not http(s).
            EngineError: nobody answers, or the answers are failures.
        """
        client = cls(Transport(url, api_key=api_key, timeout_s=timeout_s))
        try:
            client._find_kind(model)
        except BaseException:
            client.close()
            raise
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.transport.close()

    def _find_kind(self, model: str) -> None:
        response = self.transport.send("GET", "/get_server_info")
        if response.status_code == 200:
            body = object_of(response, "/get_server_info")
            ours = body.get("jetspec")
            self.kind = "jetspec" if isinstance(ours, Mapping) else "sglang"
            self.info = ours if isinstance(ours, Mapping) else info_of_stock(body)
        elif response.status_code in (401, 403):
            raise EngineError(
                f"{self.url}: status {response.status_code}: {message_of(response)}", hint="pass --api-key"
            )
        elif response.status_code not in NOT_OFFERED:
            object_of(response, "/get_server_info")
        else:
            models = self.transport.ask("GET", "/v1/models").get("data")
            if not isinstance(models, list):
                raise EngineError(f"{self.url}: neither /get_server_info nor /v1/models says what runs there")
            # Some servers list nothing, or only what they downloaded themselves, and still serve.
            self._model = model or (str(models[0].get("id", "")) if models else "")
            self.info = {"engine": "openai", "target": self._model}

    @property
    def can_switch_tree(self) -> bool:
        """Whether trees can be switched at run time: on our own servers."""
        return self.kind == "jetspec"

    def offers(self, route: str) -> bool:
        """Say whether the server has one of our own extra routes, such as "record"."""
        return route in (self.info.get("offers") or ())

    def is_alive(self) -> bool:
        """Say whether anything still answers there, whatever it answers."""
        try:
            self.transport.send("GET", "/v1/models" if self.kind == "openai" else "/health")
        except EngineError:
            return False
        return True

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False, from then on, when the server refuses or has no such thing."""
        path = FLUSH_PATHS.get(self.kind)
        self.can_flush = self.can_flush and path is not None and self._patiently(path, None).status_code == 200
        return self.can_flush

    def generate(self, prompt: Prompt, max_new_tokens: int) -> Generation:
        """Decode greedily.

        Raises:
            EngineError: the request failed, also when a 200 carries an error; ServerGoneError when nobody listens.
        """
        path, body = self._request_of(prompt, max_new_tokens)
        started = time.perf_counter()
        answer = self.transport.ask("POST", path, body)
        seconds = time.perf_counter() - started
        if path == "/generate":
            return shaped(path, lambda: from_native(answer, seconds, has_our_counters=self.kind == "jetspec"))
        return shaped(path, lambda: from_openai(answer, seconds))

    def stream(
        self, prompt: Prompt, max_new_tokens: int, *, ignores_eos: bool = False
    ) -> tuple[str, Iterator[Arrival]]:
        """Prepare a streamed greedy request; it is sent when the first event is asked for.

        Args:
            ignores_eos: decode to the cap, on servers with a native API.

        Returns:
            The path, which decides the events' shape, and the events, not parsed, each with the moment it came.
        """
        path, body = self._request_of(prompt, max_new_tokens)
        if ignores_eos and path == "/generate":
            body["sampling_params"]["ignore_eos"] = True
        counted = {} if path == "/generate" else {"stream_options": {"include_usage": True}}
        return path, self.transport.events(path, {**body, **counted, "stream": True})

    def tokens_per_round(self, prompt: Prompt, max_new_tokens: int) -> tuple[tuple[int, ...], list[int] | None]:
        """Decode as a stream; return the emitted ids and how many tokens each round gave.

        The rounds are None where the stream's chunks are not the rounds that the server's own histogram counts.

        Raises:
            EngineError: the request failed, also by an error event inside a 200 stream.
        """
        path, body = self._request_of(prompt, max_new_tokens)
        chunks: list[int] = []
        ids: tuple[int, ...] = ()
        histogram: tuple[int, ...] = ()
        for event in self.transport.stream(path, {**body, "stream": True}):
            generation = from_native(event, 0.0, has_our_counters=True)
            given = generation.token_ids or ()
            total = generation.num_emitted_tokens or 0
            # Servers stream either all ids so far or the new ones only.
            ids = given if len(given) == total else ids + given
            histogram = generation.accept_histogram or histogram
            if total > sum(chunks):
                chunks.append(total - sum(chunks))
        return ids, rounds_of(chunks, histogram)

    def render(self, prompt: Prompt) -> tuple[int, ...] | None:
        """Return the token ids a prompt becomes on this server, or None when it does not tell."""
        if prompt.input_ids is not None:
            return prompt.input_ids
        if self.kind != "jetspec":
            return None
        if prompt.content_key not in self._rendered:
            body = {"text": prompt.text} if prompt.messages is None else {"messages": _chat(prompt)}
            response = self.transport.send("POST", "/jetspec/render", body)
            is_told = response.status_code not in (400, 422, *NOT_OFFERED)
            told = object_of(response, "/jetspec/render") if is_told else {}
            ids = shaped("/jetspec/render", lambda: tuple(int(token) for token in told["input_ids"]) if told else None)
            self._rendered[prompt.content_key] = ids
        return self._rendered[prompt.content_key]

    def detokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str | None:
        """Return the text of token ids, or None when the server does not offer it."""
        if self.kind != "jetspec":
            return None
        body = {"ids": list(ids), "skip_special_tokens": skip_special_tokens}
        response = self.transport.send("POST", "/jetspec/detokenize", body)
        return None if response.status_code != 200 else str(object_of(response, "/jetspec/detokenize").get("text"))

    def record(self, input_ids: Sequence[int], max_new_tokens: int, width: int) -> Recording:
        """Have a prompt answered plainly and the drafter's offers kept; ask ``offers("record")`` first.

        Raises:
            EngineError: it failed, or the answer is not a recording.
        """
        body = {"input_ids": list(input_ids), "max_new_tokens": max_new_tokens, "width": width}
        found = object_of(self._patiently("/jetspec/record", body), "/jetspec/record")
        return shaped("/jetspec/record", lambda: Recording.from_mapping(found))

    def profile(self, input_ids: Sequence[int], num_rounds: int) -> Mapping[str, Any]:
        """Have a prompt's rounds profiled; ask ``offers("profile")`` first. Raises EngineError."""
        body = {"input_ids": list(input_ids), "num_rounds": num_rounds}
        return object_of(self._patiently("/jetspec/profile", body), "/jetspec/profile")

    def score(self, input_ids: Sequence[int], start: int, top_k: int) -> tuple[str, list[Score]] | None:
        """Teacher-force ids in one forward.

        Returns:
            The logits' dtype and a Score per position from start on; None when the server does not offer it.
        """
        if self.kind != "jetspec":
            return None
        body = {"input_ids": list(input_ids), "start": start, "top_k": top_k}
        response = self.transport.send("POST", "/jetspec/score", body)
        if response.status_code in NOT_OFFERED:
            return None
        answer = object_of(response, "/jetspec/score")
        rows = shaped("/jetspec/score", lambda: [_score_from(row) for row in answer["positions"]])
        return str(answer.get("dtype")), rows

    def examine(self, question: Mapping[str, Any]) -> bytes | None:
        """Have a prompt decoded again under observation; the evidence as a safetensors file, None if not offered."""
        if self.kind != "jetspec":
            return None
        response = self.transport.send("POST", "/jetspec/examine", question)
        if response.status_code not in (200, *NOT_OFFERED):
            raise EngineError(f"/jetspec/examine: status {response.status_code}: {message_of(response)}")
        return response.content if response.status_code == 200 else None

    def tree(self) -> TreeConfig:
        """Return the tree that runs now."""
        return _tree_from(self.transport.ask("GET", "/jetspec/tree"))

    def set_tree(self, tree: TreeConfig) -> TreeConfig:
        """Switch the tree and return it as the server resolved it. Waits a little for an idle server.

        Raises:
            BusyError: others keep the server busy.
            ConfigError: the server was started for smaller trees.
        """
        response = self._patiently("/jetspec/tree", tree.to_mapping())
        if response.status_code == 409:
            raise BusyError(f"{self.url}: still busy after {BUSY_PATIENCE_S:.0f} s", hint="gate an idle server")
        if response.status_code in (400, 422):
            raise ConfigError(f"{self.url} refuses this tree: {message_of(response)}")
        return _tree_from(object_of(response, "/jetspec/tree"))

    def _request_of(self, prompt: Prompt, max_new_tokens: int) -> tuple[str, dict[str, Any]]:
        ids = self.render(prompt)
        if self.kind != "openai" and (ids is not None or prompt.text is not None):
            content: dict[str, Any] = {"text": prompt.text} if ids is None else {"input_ids": list(ids)}
            return "/generate", {**content, "sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens}}
        common = {"model": self._model or "default", "max_tokens": max_new_tokens, "temperature": 0}
        if prompt.messages is not None:
            return "/v1/chat/completions", {**common, "messages": _chat(prompt)}
        return "/v1/completions", {**common, "prompt": prompt.text if ids is None else list(ids)}

    def _patiently(self, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        deadline = time.monotonic() + BUSY_PATIENCE_S
        while True:
            response = self.transport.send("POST", path, body)
            if response.status_code != 409 or time.monotonic() > deadline:
                return response
            time.sleep(0.1)


def _chat(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in prompt.messages or ()]


def _tree_from(body: Mapping[str, Any]) -> TreeConfig:
    return shaped("/jetspec/tree", lambda: TreeConfig.from_mapping(body.get("tree", body), where="/jetspec/tree"))


def _score_from(row: Mapping[str, Any]) -> Score:
    # JSON has no infinities: such a logit travels as null.
    top = tuple((entry[0], _number(entry[1]), _number(entry[2])) for entry in row["top"])
    logit, logprob = _number(row["logit"]), _number(row["logprob"])
    return Score(position=row["position"], token_id=row["token_id"], logit=logit, logprob=logprob, top=top)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
