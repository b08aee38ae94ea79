"""Probes of what a comparison of single prompts on an empty cache cannot see: company, the prefix cache, ends, bits.

Each is a property that an engine has by itself, whatever its texts are. The self-test runs them on seeded faults, the
gate on the server under test. Knows engines through a client only.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jetspec_cli.gating.compare import first_difference, first_position
from jetspec_cli.gating.ends import end_cases, minimum_case
from jetspec_cli.serving.generation import Generation
from jetspec_engine.config import PLAIN, TreeConfig

# Of the requests that only look at one property; the gate's own go on for longer.
BRIEF = 24
# Tokens that the end rules need of a text without an end.
LONGEST = 45
Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Catch:
    """A check that failed: at which prompt and at which emitted token, where it can say."""

    check: str
    prompt: str
    token: int | None
    detail: str


class ProbeClient(Protocol):
    """What probes need of a server."""

    def set_tree(self, tree: TreeConfig) -> TreeConfig: ...

    info: Mapping[str, Any]

    def flush_cache(self) -> bool: ...

    def submit(self, ids: Sequence[int], *, top_k: int | None = None, **sampling: Any) -> Any:
        """Queue a request; the answer has ``generation()`` and ``logprobs``."""
        ...

    def counters(self) -> Mapping[str, float]: ...


def no_acceptance(prompt: str, side: str, run: Generation) -> Iterator[Catch]:
    """Expect nothing of a run's rounds."""
    del prompt, side, run
    yield from ()


@dataclass(frozen=True, kw_only=True)
class Probes:
    """The probes of one tree.

    Attributes:
        client: the server's or the engine's.
        tree: the tree to probe.
        prompts: name to ids.
        texts: each prompt's ids with LONGEST tokens or more of its continuation, decoded plainly past every end.
        spell: the letters that each id of a text adds to it; None where a character goes on.
        special_ids: ids that are left out of texts.
        acceptance: looks at the rounds of a text that no cache helped with.
    """

    client: ProbeClient
    tree: TreeConfig
    prompts: Mapping[str, Ids]
    texts: Mapping[Ids, Ids]
    spell: Callable[[Sequence[int]], Sequence[str | None]]
    special_ids: Collection[int] = ()
    acceptance: Callable[[str, str, Generation], Iterator[Catch]] = no_acceptance

    def bits(self) -> Iterator[Catch]:
        """Log-probabilities in a tree and of plain decoding are the same numbers, as long as the tokens are."""
        for name, ids in self.prompts.items():
            sides = []
            for tree in (PLAIN, self.tree):
                answer = self.submit(ids, tree, top_k=3, ignore_eos=True)
                answer.generation()
                sides.append(answer.logprobs)
            for position, (plain, drafted) in enumerate(zip(*sides, strict=False)):
                if _token(plain) != _token(drafted):
                    break
                if plain != drafted:
                    detail = f"log-probabilities {plain} plain, {drafted} in a tree"
                    yield Catch(check="bits", prompt=name, token=position, detail=detail)
                    break

    def ends(self) -> Iterator[Catch]:
        """Stops, minimum and cap end a text where plain rules say."""
        for name, ids in self.prompts.items():
            # The engine's own text: whether its tokens are right is another check's matter.
            longest = len(self.texts[ids]) - len(ids)
            endless = self.submit(ids, PLAIN, max_new_tokens=longest, ignore_eos=True).generation().token_ids or ()
            for case in end_cases(endless, self.spell(endless), self.special_ids):
                run = self.submit(ids, self.tree, ignore_eos=True, **case.options).generation()
                position = first_position(case.ids, run.token_ids or ())
                if position is not None or (case.text is not None and case.text != run.text):
                    what = "text" if position is None else "token"
                    detail = f"another {what} than plain rules give for {dict(case.options)}"
                    yield Catch(check="ends", prompt=name, token=position, detail=detail)
            options, minimum = minimum_case(endless)
            run = self.submit(ids, self.tree, ignore_eos=True, **options).generation()
            emitted = run.token_ids or ()
            if len(emitted) < minimum or set(options["stop_token_ids"]) & set(emitted[:minimum]):
                detail = f"ended after {len(emitted)} tokens, min_new_tokens is {minimum}"
                yield Catch(check="ends", prompt=name, token=len(emitted), detail=detail)

    def cache(self) -> Iterator[Catch]:
        """A cached prefix changes neither tokens nor acceptance."""
        for name, ids in self.prompts.items():
            text = self.texts[ids]
            can_cut = self.client.info.get("can_cut_prefix", True)
            branch = text[: len(ids) + 12]
            # A state that cannot be cut serves only prompts that go on beyond the whole cached text.
            continued = branch if can_cut else text[: len(ids) + BRIEF + 6]
            other = next(token for token in (*ids, *text, 0, 1) if token != text[len(branch)])
            # The first continues a cached text, which is taken over; the second leaves it, so its beginning is copied.
            for way, longer in (("continued", continued), ("branched", (*branch, other, *ids[:2]))):
                # A drafter that remembers texts drafts a known one better: it learns this one before anything counts.
                self.submit(longer, self.tree).generation()
                cold = self.submit(longer, self.tree).generation()
                # No hints for these prompts: here the head is on its own.
                yield from self.acceptance(name, f"{way} text", cold)
                self.submit(ids, self.tree).generation()
                warm = self.submit(longer, None).generation()
                yield from _cache_catches(name, len(longer) if can_cut or longer is continued else 0, cold, warm)

    def concurrency(self, solo: Mapping[str, Generation], cap: int, times: int) -> Iterator[Catch]:
        """Requests decoded together give the texts they give alone.

        Args:
            solo: each prompt's answer alone, under this tree and with this cap.
            cap: max_new_tokens.
            times: how often each is asked for at once.
        """
        self.client.set_tree(self.tree)
        self.client.flush_cache()
        names = [name for name in self.prompts if name in solo] * times
        answers = [(name, self.client.submit(self.prompts[name], max_new_tokens=cap)) for name in names]
        for name, answer in answers:
            difference = first_difference(solo[name], answer.generation())
            if difference is not None:
                yield Catch(check="concurrency", prompt=name, token=difference.position, detail=difference.detail)

    def work(self) -> Iterator[Catch]:
        """A text takes no more target forwards than its rounds, a prompt no more than its chunks."""
        for name, ids in self.prompts.items():
            before = self.client.counters()["target_forwards"]
            rounds = self.submit(ids, self.tree).generation().num_rounds or 0
            forwards = self.client.counters()["target_forwards"] - before
            chunks = math.ceil(len(ids) / self.client.info["prefill_chunk"])
            # The prompt's last chunk is the first round.
            if forwards > rounds + chunks - 1:
                detail = f"{forwards:.0f} forwards for {rounds} rounds and {chunks} prompt chunks"
                yield Catch(check="work", prompt=name, token=None, detail=detail)

    def pages(self) -> Iterator[Catch]:
        """All pages come back."""
        self.client.flush_cache()
        counters = self.client.counters()
        free, total = counters["pages_free"], counters["pages_total"]
        if free != total:
            detail = f"{free:.0f} pages free on an idle engine, {total:.0f} there are"
            yield Catch(check="pages", prompt="all", token=None, detail=detail)

    def submit(self, ids: Sequence[int], tree: TreeConfig | None, **options: Any) -> Any:
        """Queue a request on an empty cache under a tree; None leaves tree and cache as they are."""
        if tree is not None:
            self.client.set_tree(tree)
            self.client.flush_cache()
        return self.client.submit(ids, **{"max_new_tokens": BRIEF, **options})


def record_texts(client: ProbeClient, prompts: Mapping[str, Ids], count: int) -> dict[Ids, Ids]:
    """Decode every prompt plainly past its end and return prompts and continuations.

    Args:
        client: the server's or the engine's.
        prompts: name to ids.
        count: tokens of each continuation.
    """
    client.set_tree(PLAIN)
    texts = {}
    for ids in prompts.values():
        client.flush_cache()
        answer = client.submit(ids, max_new_tokens=count, ignore_eos=True)
        texts[ids] = (*ids, *(answer.generation().token_ids or ()))
    return texts


def _token(logprob: Any) -> int:
    """Return the token of a log-probability, over HTTP a tuple and in process a record."""
    token: int = logprob[0] if isinstance(logprob, tuple) else logprob.token_id
    return token


def _cache_catches(name: str, length: int, cold: Generation, warm: Generation) -> Iterator[Catch]:
    difference = first_difference(cold, warm)
    if difference is not None:
        yield Catch(check="cache", prompt=name, token=difference.position, detail=difference.detail)
    elif length and not warm.num_cached_tokens:
        yield Catch(check="cache", prompt=name, token=None, detail=f"nothing of {length} tokens was reused")
    elif warm.num_rounds != cold.num_rounds:
        detail = f"{warm.num_rounds} rounds with a cached prefix, {cold.num_rounds} without"
        yield Catch(check="cache", prompt=name, token=None, detail=detail)
