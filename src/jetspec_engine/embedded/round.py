"""One round: draft, build, verify, accept, commit. And prefill, which is a chain tree over a chunk of the prompt.

Every verb handles all requests of the round at once, and one forward of the target verifies them together. What fails
ends the requests it belongs to and no others. Knows nothing of threads, queues or where regions come from.

With a budget of one node (plain decoding) the drafter is never called: such requests have no draft state.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from jetspec_engine.config import TreeConfig
from jetspec_engine.embedded.request import ActiveRequest
from jetspec_engine.embedded.score import token_logprobs
from jetspec_engine.errors import EngineError
from jetspec_engine.protocol import (
    Candidates,
    Drafter,
    DraftSession,
    TargetModel,
    TreeBuilder,
    VerifyItem,
    VerifyResult,
)
from jetspec_engine.tree.accept import NON_FINITE, accept_greedy, greedy_ids
from jetspec_engine.tree.expected import expected_accept_length
from jetspec_engine.tree.record import DraftTree


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What rounds are made with until the tree is switched.

    Attributes:
        target: verifies.
        drafter: proposes.
        builder: makes trees of ``tree``'s rule.
        tree: width, budget and rule.
        prefill_chunk: most prompt tokens in one forward.
    """

    target: TargetModel
    drafter: Drafter
    builder: TreeBuilder
    tree: TreeConfig
    prefill_chunk: int

    @property
    def budget(self) -> int:
        """Most nodes of a tree."""
        return self.tree.resolve_budget(self.drafter.depth)

    @property
    def is_drafting(self) -> bool:
        """Whether there is anything to draft; if not this is plain decoding."""
        return self.budget > 1


@dataclass(kw_only=True)
class Turn:
    """One request's part of a round.

    Attributes:
        depth: how deep drafts can be of use: the round emits at most ``depth + 1`` tokens.
        path: nodes to commit, from the root on.
    """

    request: ActiveRequest
    depth: int
    candidates: Candidates | None = None
    tree: DraftTree | None = None
    result: VerifyResult | None = None
    path: tuple[int, ...] = ()


@dataclass
class PhaseClock:
    """Wall seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin

    def charge(self, requests: Sequence[ActiveRequest]) -> None:
        """Charge every request with the whole time: each waited for all of it."""
        for request in requests:
            for name, seconds in self.seconds.items():
                request.stats.phase_s[name] = request.stats.phase_s.get(name, 0.0) + seconds


@contextmanager
def blame(requests: Sequence[ActiveRequest]) -> Iterator[None]:
    """End the requests with an error when the block raises."""
    try:
        yield
    except Exception as error:
        for request in requests:
            request.fail(error)


def run_round(requests: Sequence[ActiveRequest], parts: Parts) -> None:
    """Run one round for prefilled requests; each emits one token or more, ends, or fails."""
    turns = [Turn(request=request, depth=usable_depth(request, parts)) for request in requests]
    clock = PhaseClock()
    with clock.phase("draft"):
        draft(turns, parts)
    with clock.phase("build"):
        build(turns, parts)
    with clock.phase("verify"):
        verify(turns, parts)
    with clock.phase("accept"):
        accept(turns)
    with clock.phase("commit"):
        commit(turns, parts)
    clock.charge(requests)
    total = sum(clock.seconds.values())
    for request in requests:
        request.stats.round_s.append(total)


def usable_depth(request: ActiveRequest, parts: Parts) -> int:
    """Return how deep a draft can be accepted: the cap also keeps positions within the context."""
    return min(parts.drafter.depth, request.num_left - 1) if request.is_drafting else 0


def draft(turns: Sequence[Turn], parts: Parts) -> None:
    """Ask the drafter for candidates, where a draft can be of use.

    A scripted drafter may dictate whole trees instead; see ``draft.scripted``.
    """
    drafting = [turn for turn in turns if turn.depth > 0]
    if not drafting:
        return
    with blame([turn.request for turn in drafting]):
        dictate = getattr(parts.drafter, "propose_trees", None)
        if dictate is not None:
            depths = [turn.depth for turn in drafting]
            trees = dictate(_sessions(drafting), _anchors(drafting), parts.budget, depths, parts.tree.width)
            for turn, tree in zip(drafting, trees, strict=True):
                turn.tree = tree
            drafting = [turn for turn in drafting if turn.tree is None]
        proposed = parts.drafter.propose(_sessions(drafting), _anchors(drafting), parts.tree.width)
        for turn, offer in zip(drafting, proposed, strict=True):
            # Trees are built on the host: with a GPU this is where it waits for the draft.
            tokens, logprobs = offer.tokens[: turn.depth].cpu(), offer.logprobs[: turn.depth].cpu()
            turn.candidates = Candidates(tokens=tokens, logprobs=logprobs)


def build(turns: Sequence[Turn], parts: Parts) -> None:
    """Make each request's tree: its anchor as the root, and the drafts the rule picks."""
    for turn in _running(turns):
        with blame([turn.request]):
            if turn.candidates is not None:
                turn.tree = parts.builder(turn.request.anchor, turn.candidates, parts.tree)
            if turn.tree is None:
                turn.tree = DraftTree.root_only(turn.request.anchor)
            else:
                _check_tree(turn.tree, parts)
            # A chain of width 1 is drawn without probabilities.
            is_known = parts.tree.width > 1 or turn.tree.num_nodes == 1
            turn.request.stats.expected_tokens += expected_accept_length(turn.tree) if is_known else math.nan


def verify(turns: Sequence[Turn], parts: Parts) -> None:
    """Run the target once over all trees."""
    running = _running(turns)
    items = []
    for turn in running:
        assert turn.request.region is not None
        items.append(VerifyItem(region=turn.request.region, length=turn.request.length, tree=turn.tree))
    if not items:
        return
    with blame([turn.request for turn in running]):
        for turn, result in zip(running, parts.target.verify(items), strict=True):
            turn.result = result


def accept(turns: Sequence[Turn]) -> None:
    """Walk each tree, emit what the target agrees with and its bonus token, up to the end of the text."""
    for turn in _running(turns):
        with blame([turn.request]):
            assert turn.tree is not None
            assert turn.result is not None
            turn.path = _accept_tree(turn.request, turn.tree, turn.result.logits)


def commit(turns: Sequence[Turn], parts: Parts) -> None:
    """Keep the path's state in the target and the drafter; nothing beyond the end of the text."""
    for turn in turns:
        if turn.path and not _has_failed(turn.request):
            assert turn.result is not None
            with blame([turn.request]):
                _keep(turn.request, turn.path, turn.result.hidden, parts)


def prefill(request: ActiveRequest, parts: Parts) -> None:
    """Commit the next chunk of the prompt; the last one gives the first token, which is the first anchor."""
    clock = PhaseClock()
    with clock.phase("prefill"), blame([request]):
        assert request.region is not None
        chunk = request.ids[request.length : min(request.length + parts.prefill_chunk, request.num_prompt)]
        count = len(chunk)
        is_last = request.length + count == request.num_prompt
        tree = DraftTree.chain(chunk)
        first = count - 1 if is_last else count
        item = VerifyItem(region=request.region, length=request.length, tree=tree, logits_from=first)
        (result,) = parts.target.verify((item,))
        _keep(request, range(count), result.hidden, parts)
        if is_last:
            _accept_tree(request, DraftTree.root_only(request.anchor), result.logits)
            request.stats.expected_tokens += 1
    clock.charge([request])


def _accept_tree(request: ActiveRequest, tree: DraftTree, logits: Any) -> tuple[int, ...]:
    """Emit the accepted tokens and return the nodes to commit.

    ``logits`` (N, V) are changed: end ids are masked at the depths where the text must go on.
    """
    _mask_end_ids(request, tree, logits)
    accepted = accept_greedy(tree, greedy_ids(logits))
    path = accepted.path
    emitted: list[int] = []
    try:
        for token in [*tree.tokens[list(path[1:])].tolist(), accepted.bonus]:
            if token == NON_FINITE:
                raise EngineError(f"target logits: not finite after {len(request.ids)} tokens")
            emitted.append(token)
            request.emit(token)
            if request.finish is not None:
                break
    finally:
        request.count_round(len(emitted), tree.num_nodes - 1, min(len(path) - 1, len(emitted)))
    if request.request.logprobs_top_k is not None and emitted:
        rows = logits[list(path[: len(emitted)])]
        request.add_logprobs(token_logprobs(rows, emitted, request.request.logprobs_top_k))
    # Of the emitted tokens, the drafts are in the tree and the bonus is not; the root is the anchor before them.
    return path[: len(emitted) + 1]


def _mask_end_ids(request: ActiveRequest, tree: DraftTree, logits: Any) -> None:
    depths = request.num_masked_depths()
    if depths > 0 and request.rules.end_ids:
        rows = torch.from_numpy((tree.depths < depths).nonzero()[0]).to(logits.device)
        ids = torch.tensor(sorted(request.rules.end_ids), device=logits.device)
        logits[rows.unsqueeze(1), ids] = float("-inf")


def _keep(request: ActiveRequest, path: Sequence[int], hidden: Any, parts: Parts) -> None:
    """Commit the path's nodes, whose tokens are the request's next uncommitted ones."""
    assert request.region is not None
    parts.target.commit(request.region, request.length, path)
    committed = request.length + len(path)
    if request.session is not None:
        rows = None if hidden is None else hidden[list(path)]
        parts.drafter.extend(request.session, request.ids[request.length : committed], rows)
        if request.session.length != committed:
            raise EngineError(f"drafter: {request.session.length} positions, expected {committed} as committed")
        request.draft_length = committed
    request.length = committed


def _check_tree(tree: DraftTree, parts: Parts) -> None:
    if tree.num_nodes > parts.budget:
        raise EngineError(f"tree: {tree.num_nodes} nodes, expected at most {parts.budget}")
    low, high = int(tree.tokens.min()), int(tree.tokens.max())
    if low < 0 or high >= parts.target.vocab_size:
        bad = low if low < 0 else high
        raise EngineError(f"drafter: token id {bad}, expected [0, {parts.target.vocab_size - 1}]")


def _running(turns: Sequence[Turn]) -> list[Turn]:
    return [turn for turn in turns if turn.request.finish is None]


def _sessions(turns: Sequence[Turn]) -> list[DraftSession]:
    return [turn.request.session for turn in turns if turn.request.session is not None]


def _anchors(turns: Sequence[Turn]) -> list[int]:
    return [turn.request.anchor for turn in turns]


def _has_failed(request: ActiveRequest) -> bool:
    return request.finish is not None and request.finish.kind == "error"
