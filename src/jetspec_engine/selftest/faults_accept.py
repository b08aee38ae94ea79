"""Faults of acceptance and of where texts end, and of what is counted and reported."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from jetspec_engine.embedded import engine, request, stops
from jetspec_engine.embedded import round as rounds
from jetspec_engine.selftest.mutants import MutantTable, Patch
from jetspec_engine.tree.accept import Accepted, accept_greedy, greedy_ids

TABLE = MutantTable()
ENDLESS = 1 << 30


def _ids(target_ids: Any) -> list[int]:
    return [int(token) for token in target_ids]


@TABLE.add("the bonus is read at the node after the path's last")
def bonus_off_by_one() -> Sequence[Patch]:
    def faulty(tree: Any, target_ids: Any) -> Accepted:
        accepted = accept_greedy(tree, target_ids)
        ids = _ids(target_ids)
        return Accepted(accepted.path, ids[min(accepted.path[-1] + 1, len(ids) - 1)])

    return [(rounds, "accept_greedy", faulty)]


@TABLE.add("a batch's later requests get the bonus of the request before them")
def bonus_of_another_request() -> Sequence[Patch]:
    accept = rounds.accept
    # The bonuses of the round at hand; None outside of rounds, where prompts are prefilled one by one.
    seen: list[list[int] | None] = [None]

    def faulty_accept(turns: Any) -> None:
        seen[0] = []
        accept(turns)
        seen[0] = None

    def faulty_walk(tree: Any, target_ids: Any) -> Accepted:
        accepted, bonuses = accept_greedy(tree, target_ids), seen[0]
        if bonuses is None:
            return accepted
        bonuses.append(accepted.bonus)
        return Accepted(accepted.path, bonuses[max(len(bonuses) - 2, 0)])

    return [(rounds, "accept", faulty_accept), (rounds, "accept_greedy", faulty_walk)]


@TABLE.add("a tie between the target's logits goes to the higher id")
def target_tie_last_wins() -> Sequence[Patch]:
    return [(rounds, "greedy_ids", lambda logits: logits.shape[-1] - 1 - greedy_ids(logits.flip(-1)))]


@TABLE.add("a tie goes to the higher id in odd rows")
def tie_broken_by_row() -> Sequence[Patch]:
    def faulty(logits: Any) -> Any:
        lower, higher = greedy_ids(logits), logits.shape[-1] - 1 - greedy_ids(logits.flip(-1))
        is_odd = torch.arange(len(logits)) % 2 == 1
        return torch.where(is_odd, higher, lower)

    return [(rounds, "greedy_ids", faulty)]


@TABLE.add("the walk compares a node with the choice at the node before it, not at its parent")
def walk_by_index() -> Sequence[Patch]:
    def faulty(tree: Any, target_ids: Any) -> Accepted:
        ids, tokens, parents = _ids(target_ids), tree.tokens.tolist(), tree.parents.tolist()
        path = [0]
        for node in range(1, len(tokens)):
            if parents[node] == path[-1] and tokens[node] == ids[node - 1]:
                path.append(node)
        return Accepted(tuple(path), ids[path[-1]])

    return [(rounds, "accept_greedy", faulty)]


@TABLE.add("the walk goes on below the accepted child's younger sibling")
def walk_takes_next_sibling() -> Sequence[Patch]:
    def faulty(tree: Any, target_ids: Any) -> Accepted:
        ids, tokens, parents = _ids(target_ids), tree.tokens.tolist(), tree.parents.tolist()
        path = [0]
        for node in range(1, len(tokens)):
            if parents[node] == path[-1] and tokens[node] == ids[path[-1]]:
                younger = [other for other in range(node + 1, len(tokens)) if parents[other] == parents[node]]
                path.append(younger[0] if younger else node)
        return Accepted(tuple(sorted(set(path))), ids[path[-1]])

    return [(rounds, "accept_greedy", faulty)]


@TABLE.add("the walk looks at each node's first child only")
def walk_first_child_only() -> Sequence[Patch]:
    def faulty(tree: Any, target_ids: Any) -> Accepted:
        ids, tokens, parents = _ids(target_ids), tree.tokens.tolist(), tree.parents.tolist()
        path = [0]
        for node in range(1, len(tokens)):
            is_first = parents.index(parents[node], 1) == node
            if parents[node] == path[-1] and is_first and tokens[node] == ids[path[-1]]:
                path.append(node)
        return Accepted(tuple(path), ids[path[-1]])

    return [(rounds, "accept_greedy", faulty)]


@TABLE.add("one draft more than was right is accepted")
def one_draft_too_many() -> Sequence[Patch]:
    def faulty(tree: Any, target_ids: Any) -> Accepted:
        accepted = accept_greedy(tree, target_ids)
        child = next((node for node, parent in enumerate(tree.parents.tolist()) if parent == accepted.path[-1]), None)
        if child is None:
            return accepted
        return Accepted((*accepted.path, child), _ids(target_ids)[child])

    return [(rounds, "accept_greedy", faulty)]


def _inside_blocks(loosen: Any) -> Sequence[Patch]:
    """Loosen a request's rules for every token of a block but its last."""
    emit = request.ActiveRequest.emit
    left: list[int] = [0]

    def faulty_walk(tree: Any, target_ids: Any) -> Accepted:
        accepted = accept_greedy(tree, target_ids)
        left[0] = len(accepted.path)
        return accepted

    def faulty_emit(self: Any, token_id: int) -> None:
        left[0] -= 1
        rules = self.rules
        if left[0] > 0:
            self.rules = loosen(rules)
        emit(self, token_id)
        self.rules = rules

    return [(rounds, "accept_greedy", faulty_walk), (request.ActiveRequest, "emit", faulty_emit)]


@TABLE.add("EOS inside an accepted block is ignored")
def eos_inside_block_ignored() -> Sequence[Patch]:
    submit = engine.EmbeddedEngine.submit
    eos: set[int] = set()

    def faulty_submit(self: Any, asked: Any, on_event: Any) -> None:
        eos.update(self.tokenizer.eos_token_ids)
        submit(self, asked, on_event)

    loosened = _inside_blocks(lambda rules: replace(rules, end_ids=rules.end_ids - eos))
    return [*loosened, (engine.EmbeddedEngine, "submit", faulty_submit)]


@TABLE.add("a stop id inside an accepted block is ignored")
def stop_id_inside_block_ignored() -> Sequence[Patch]:
    return _inside_blocks(lambda rules: replace(rules, end_ids=frozenset()))


@TABLE.add("a stop string that ends inside an accepted block is ignored")
def stop_string_inside_block_ignored() -> Sequence[Patch]:
    return _inside_blocks(lambda rules: replace(rules, min_new_tokens=ENDLESS))


@TABLE.add("an accepted block may pass the cap")
def cap_overrun() -> Sequence[Patch]:
    def full_depth(asked: Any, parts: Any) -> int:
        return int(parts.drafter.depth) if asked.is_drafting else 0

    return [*_inside_blocks(lambda rules: replace(rules, cap=ENDLESS)), (rounds, "usable_depth", full_depth)]


def _rules(change: Any) -> Sequence[Patch]:
    of = stops.EndRules.of
    return [(stops.EndRules, "of", lambda sampling, eos, room: change(of(sampling, eos, room)))]


@TABLE.add("one token more than asked for is given")
def cap_off_by_one() -> Sequence[Patch]:
    return _rules(lambda rules: replace(rules, cap=rules.cap + 1))


@TABLE.add("min_new_tokens is ignored")
def minimum_ignored() -> Sequence[Patch]:
    return _rules(lambda rules: replace(rules, min_new_tokens=0))


@TABLE.add("text held back for a stop string is lost at the end")
def held_text_lost() -> Sequence[Patch]:
    def faulty(self: Any) -> None:
        self._held = ""

    return [(stops.StopScanner, "release", faulty)]


@TABLE.add("every round is verified a second time")
def reverify() -> Sequence[Patch]:
    verify = rounds.verify

    def faulty(turns: Any, parts: Any) -> None:
        verify(turns, parts)
        verify(turns, parts)

    return [(rounds, "verify", faulty)]


@TABLE.add("the reported histogram files one round under one token too few")
def histogram_off_by_one() -> Sequence[Patch]:
    take = request.ActiveRequest.take_event

    def faulty(self: Any) -> Any:
        event = take(self)
        if event is not None and event.stats is not None:
            counts = event.stats.accept_histogram
            last = max((i for i, count in enumerate(counts) if count), default=0)
            if last:
                counts[last] -= 1
                counts[last - 1] += 1
        return event

    return [(request.ActiveRequest, "take_event", faulty)]


@TABLE.add("a round is counted twice")
def round_counted_twice() -> Sequence[Patch]:
    count = request.ActiveRequest.count_round

    def faulty(self: Any, num_emitted: int, num_proposed: int, num_correct: int) -> None:
        count(self, num_emitted, num_proposed, num_correct)
        self.stats.num_rounds += 1

    return [(request.ActiveRequest, "count_round", faulty)]


@TABLE.add("more drafts are counted as correct than were accepted")
def correct_drafts_overcounted() -> Sequence[Patch]:
    count = request.ActiveRequest.count_round

    def faulty(self: Any, num_emitted: int, num_proposed: int, num_correct: int) -> None:
        count(self, num_emitted, num_proposed, num_correct + (num_proposed > 0))

    return [(request.ActiveRequest, "count_round", faulty)]
