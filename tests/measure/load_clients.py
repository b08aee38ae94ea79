"""What the clients of a load run do: every way to ask, to leave and to be wrong, and what each must come to.

Knows the server's HTTP routes; nothing of threads, deadlines or reports.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

MATCH, MISMATCH, LEFT, ABORTED, REFUSED, WRONG = "match", "mismatch", "left", "aborted", "refused", "wrong"
BAD_BODIES: tuple[tuple[str, Any], ...] = (
    ("/generate", {"text": "x", "sampling_params": {"max_new_tokens": -1}}),
    ("/generate", {"text": "x", "sampling_params": {"temperature": 0.7}}),
    ("/generate", {"text": "x", "sampling_params": {"stop": [""]}}),
    ("/generate", {"input_ids": [1, 2, 10**9]}),
    ("/generate", {"input_ids": []}),
    ("/generate", {"text": 7}),
    ("/generate", b"{not json"),
    ("/generate", b"\xff\xfe"),
    ("/v1/completions", {"model": "nobody", "prompt": "x"}),
    ("/v1/completions", {"model": "default", "prompt": "x", "n": 0}),
    ("/v1/completions", {"model": "default", "prompt": "x", "max_tokens": 10**9, "temperature": 2}),
    ("/v1/chat/completions", {"model": "default", "messages": []}),
    ("/v1/chat/completions", {"model": "default", "messages": [{"role": "wizard", "content": "x"}]}),
    ("/jetspec/tree", {"width": 0}),
    ("/jetspec/score", {"input_ids": [1]}),
    ("/abort_request", {}),
    ("/nowhere", {}),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A prompt with all its limits, and what it gives when it is alone.

    Attributes:
        content: ``{"text": ...}`` or ``{"messages": ...}``.
        cap, stop: of the request.
        solo: its text.
    """

    content: Mapping[str, Any]
    cap: int
    stop: tuple[str, ...] = ()
    solo: str = ""

    def native(self, **more: Any) -> dict[str, Any]:
        """Return a body of ``/generate``."""
        sampling = {"max_new_tokens": self.cap, "temperature": 0, **({"stop": list(self.stop)} if self.stop else {})}
        return {**self.content, "sampling_params": sampling, **more}

    def openai(self, **more: Any) -> tuple[str, dict[str, Any]]:
        """Return an OpenAI-compatible route and its body."""
        common = {"model": "default", "max_tokens": self.cap, "temperature": 0, **more}
        if self.stop:
            common["stop"] = list(self.stop)
        if "messages" in self.content:
            return "/v1/chat/completions", {**common, "messages": self.content["messages"]}
        return "/v1/completions", {**common, "prompt": self.content["text"]}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one request ended: a status, one of the words above, its text's length in characters, and a remark."""

    status: int
    ended: str
    num_characters: int = 0
    remark: str = ""


Behaviour = Callable[[httpx.Client, Case, random.Random, str], Outcome]


def ask(client: httpx.Client, case: Case) -> tuple[int, str]:
    """Return status and text of a plain answer."""
    path, body = ("/generate", case.native()) if "text" in case.content else case.openai()
    answer = client.post(path, json=body)
    return answer.status_code, text_of(answer.json()) if answer.status_code == 200 else answer.text[:200]


def text_of(document: Mapping[str, Any]) -> str:
    """Return the text of a whole answer, native or OpenAI-compatible."""
    if "choices" not in document:
        return str(document["text"])
    (choice,) = document["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def native(client: httpx.Client, case: Case, rng: random.Random, name: str) -> Outcome:
    """Ask natively; chats have no native form and are asked as chats."""
    status, text = ask(client, case)
    return _judged(status, text, case)


def openai(client: httpx.Client, case: Case, rng: random.Random, name: str) -> Outcome:
    """Ask OpenAI-compatibly."""
    path, body = case.openai()
    answer = client.post(path, json=body)
    text = text_of(answer.json()) if answer.status_code == 200 else answer.text[:200]
    return _judged(answer.status_code, text, case)


def stream(client: httpx.Client, case: Case, rng: random.Random, name: str) -> Outcome:
    """Read a stream to its end."""
    status, text, has_ended = _read(client, case, rng, None, name)
    return _judged(status, text, case) if has_ended else Outcome(status=status, ended=WRONG, remark=text[:200])


def leave(client: httpx.Client, case: Case, rng: random.Random, name: str) -> Outcome:
    """Read some events of a stream, and go."""
    status, text, has_ended = _read(client, case, rng, rng.randint(1, 6), name)
    return _judged(status, text, case) if has_ended else _part(status, text, case, LEFT)


def hang_up(client: httpx.Client, case: Case, rng: random.Random, name: str) -> Outcome:
    """Ask for a whole answer and do not wait for it."""
    path, body = ("/generate", case.native()) if "text" in case.content else case.openai()
    try:
        answer = client.post(path, json=body, timeout=rng.uniform(0.05, 2.0))
    except httpx.TimeoutException:
        return Outcome(status=0, ended=LEFT)
    return _judged(answer.status_code, text_of(answer.json()) if answer.status_code == 200 else "", case)


def abort(client: httpx.Client, case: Case, rng: random.Random, name: str) -> Outcome:
    """Have the request aborted by its id after some events."""
    if "text" not in case.content:
        return stream(client, case, rng, name)
    status, text, has_ended = _read(client, case, rng, rng.randint(1, 6), name, aborts=True)
    if text == case.solo:
        return _judged(status, text, case)
    return _part(status, text, case, ABORTED) if has_ended else Outcome(status=status, ended=WRONG, remark="no end")


def bad(client: httpx.Client, case: Case, rng: random.Random, name: str) -> Outcome:
    """Send a body that must be refused."""
    path, body = rng.choice(BAD_BODIES)
    if isinstance(body, bytes):
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    else:
        answer = client.post(path, json=body)
    is_refused = 400 <= answer.status_code < 500
    return Outcome(status=answer.status_code, ended=REFUSED if is_refused else WRONG, remark=f"{path} {body!r:.80}")


BEHAVIOURS: Sequence[tuple[Behaviour, int]] = (
    (native, 6), (openai, 5), (stream, 6), (leave, 3), (hang_up, 2), (abort, 3), (bad, 4),
)  # fmt: skip


def _judged(status: int, text: str, case: Case) -> Outcome:
    if status != 200:
        return Outcome(status=status, ended=WRONG, remark=text[:200])
    if text == case.solo:
        return Outcome(status=status, ended=MATCH, num_characters=len(text))
    return Outcome(status=status, ended=MISMATCH, num_characters=len(text), remark=f"{text!r}, alone {case.solo!r}")


def _part(status: int, text: str, case: Case, ended: str) -> Outcome:
    """What was said before the end must be how the text begins."""
    if status == 200 and case.solo.startswith(text):
        return Outcome(status=status, ended=ended, num_characters=len(text))
    return Outcome(status=status, ended=MISMATCH, remark=f"{text!r}, alone {case.solo!r}")


def _read(
    client: httpx.Client, case: Case, rng: random.Random, stop_after: int | None, name: str, *, aborts: bool = False
) -> tuple[int, str, bool]:
    """Return status, text and whether the stream came to its end.

    Args:
        stop_after: leave, or abort the request, after so many events; None reads to the end.
    """
    is_native = "text" in case.content and (aborts or rng.random() < 0.5)
    path, body = ("/generate", case.native(rid=name, stream=True)) if is_native else case.openai(stream=True)
    text, last = "", ""
    with client.stream("POST", path, json=body) as answer:
        if answer.status_code != 200:
            return answer.status_code, answer.read().decode(errors="replace"), False
        for count, last in enumerate(_events(answer), 1):
            if last == "[DONE]":
                break
            document = json.loads(last)
            if "error" in document:
                return 200, str(document["error"]), False
            text = document["text"] if is_native else text + _delta(document)
            if count == stop_after and not aborts:
                return 200, text, False
            if count == stop_after:
                client.post("/abort_request", json={"rid": name})
    return 200, text, last == "[DONE]"


def _events(answer: httpx.Response) -> Iterator[str]:
    return (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))


def _delta(document: Mapping[str, Any]) -> str:
    if not document["choices"]:
        return ""
    (choice,) = document["choices"]
    return str(choice["delta"].get("content") or "") if "delta" in choice else str(choice["text"])
