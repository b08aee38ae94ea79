"""Drafters that follow a script instead of weights: dictated, replayed, always right, always wrong, random.

A dictated *tree* cannot be said in candidates. Drafters of this module that know one offer, beside the protocol::

    propose_trees(sessions, anchors, max_nodes, max_depths, width) -> list[DraftTree | None]

A caller that finds the method asks it first, with the budget, each session's deepest useful draft and the tree's width;
where it answers None, ``propose`` is asked as usual. Either of them, not both, uses up the session's round.
Knows nothing of the target.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jetspec_engine.config import check_integer, check_keys, check_range
from jetspec_engine.draft.recall import RecallDrafter
from jetspec_engine.draft.scripted_trees import comb, dictated_tree
from jetspec_engine.draft.stand_in import NEVER, WHERE, Row, StandIn, StandInSession, decoys, read_ids
from jetspec_engine.errors import ConfigError
from jetspec_engine.tree.record import DraftTree

SURE = math.log(0.99)
UNLIKELY = math.log(0.001)
# Many candidates of one depth must stay usable by every rule, so they differ by little.
RANK_STEP = 0.01


class RightDrafter(StandIn):
    """Offers the recorded token at every depth, nearly certain of it, with decoys behind.

    Options: ``recordings``. Nothing is offered for a prompt without a recording or beyond its end.
    """

    def guess(self, session: StandInSession, anchor: int, width: int) -> list[Row]:  # noqa: ARG002
        """Return the recorded tokens."""
        rows: list[Row] = []
        for token in _right_tokens(session, self.depth):
            others = decoys(token, width - 1, self.vocab_size)
            rows.append([(token, SURE), *((other, UNLIKELY - RANK_STEP * i) for i, other in enumerate(others))])
        return rows


class WrongDrafter(StandIn):
    """Never offers the recorded token, and is nearly certain.

    Options: ``recordings``. Without one, or beyond its end, it offers the ids after the anchor's, which a target may
    happen to like: a test that needs every draft refused has to record.
    """

    def guess(self, session: StandInSession, anchor: int, width: int) -> list[Row]:
        """Return tokens that are not the recorded ones."""
        rows: list[Row] = []
        for depth in range(1, self.depth + 1):
            right = session.right_token(depth)
            wrong = decoys(anchor if right is None else right, width, self.vocab_size)
            rows.append([(token, SURE - 5.0 * rank) for rank, token in enumerate(wrong)])
        return rows


class ReplayDrafter(StandIn):
    """Offers a recorded text with decoys before the right token at every depth.

    Options:
        recordings: the texts.
        rank: 0-based rank of the right token (default 0); a width of ``rank`` or less offers decoys only.
        is_comb: dictate trees in which the right path takes the last of ``rank + 1`` children everywhere, so that
            accepted paths are deep and made of non-first children only.
    """

    option_names = ("recordings", "rank", "is_comb")

    def __init__(self, *, depth: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(depth=depth, vocab_size=vocab_size, options=options)
        self._rank = options.get("rank", 0)
        check_integer(f"{WHERE}.rank", self._rank, 0, vocab_size - 1)
        self._is_comb = _read_flag("is_comb", options)

    def guess(self, session: StandInSession, anchor: int, width: int) -> list[Row]:  # noqa: ARG002
        """Return the recorded tokens at their rank, all of a depth about equally likely."""
        rows: list[Row] = []
        for token in _right_tokens(session, self.depth):
            tokens = decoys(token, width, self.vocab_size)
            tokens.insert(self._rank, token)
            rows.append([(other, -math.log(width) - RANK_STEP * rank) for rank, other in enumerate(tokens[:width])])
        return rows

    def propose_trees(
        self,
        sessions: Sequence[StandInSession],
        anchors: Sequence[int],
        max_nodes: int,
        max_depths: Sequence[int],
        width: int,  # noqa: ARG002  the tree is dictated whole
    ) -> list[DraftTree | None]:
        """Return combs over the recorded texts, or None per session when candidates are wanted."""
        if not self._is_comb:
            return [None] * len(sessions)
        trees: list[DraftTree | None] = []
        for session, anchor, max_depth in zip(sessions, anchors, max_depths, strict=True):
            right = _right_tokens(session, self.depth)
            parents, tokens = comb(right, [decoys(token, self._rank, self.vocab_size) for token in right])
            trees.append(dictated_tree(anchor, parents, tokens, max_nodes=max_nodes, max_depth=max_depth))
            session.num_rounds += 1
        return trees


class RandomDrafter(StandIn):
    """Offers random tokens; the same for the same seed, prompt and position, however rounds are batched.

    Options:
        seed: 0 .. 2**32 - 1, default 0.
        recordings: texts whose right token may be among the candidates.
        right_rate: probability per depth that it is, at a random rank; default 0.
    """

    option_names = ("recordings", "seed", "right_rate")

    def __init__(self, *, depth: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(depth=depth, vocab_size=vocab_size, options=options)
        self._seed = options.get("seed", 0)
        self._right_rate = options.get("right_rate", 0.0)
        check_integer(f"{WHERE}.seed", self._seed, 0, 2**32 - 1)
        check_range(f"{WHERE}.right_rate", self._right_rate, 0.0, 1.0)

    def guess(self, session: StandInSession, anchor: int, width: int) -> list[Row]:
        """Return random tokens and random probabilities."""
        prompt = zlib.crc32(np.asarray(session.request.input_ids, dtype=np.int64).tobytes())
        generator = np.random.default_rng([self._seed, prompt, session.length, anchor])
        count = min(width, self.vocab_size)
        rows: list[Row] = []
        for depth in range(1, self.depth + 1):
            tokens = generator.choice(self.vocab_size, size=count, replace=False).tolist()
            right = session.right_token(depth)
            if generator.random() < self._right_rate and right is not None and right not in tokens:
                tokens[int(generator.integers(count))] = right
            spread = generator.normal(scale=2.0, size=count)
            logprobs = np.minimum(np.sort(spread - np.log(np.exp(spread).sum()))[::-1], 0.0).tolist()
            rows.append(list(zip(tokens, logprobs, strict=True)))
        return rows


class ScriptedDrafter(StandIn):
    """Offers exactly what its script says, round by round, to every sequence alike.

    Options:
        rounds: a list with one mapping a round. ``{"tokens": [[...], ...]}`` are candidates, one list a depth,
            likeliest first, with ``"logprobs"`` of the same shape or a small step from rank to rank.
            ``{"parents": [...], "tokens": [...]}`` is a tree: parent 0 is the root, ``i + 1`` the i-th draft.
        is_repeating: begin again after the last round; otherwise nothing is offered from then on.
    """

    option_names = ("rounds", "is_repeating")

    def __init__(self, *, depth: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(depth=depth, vocab_size=vocab_size, options=options)
        rounds = options.get("rounds", ())
        if not isinstance(rounds, (list, tuple)):
            raise ConfigError(f"{WHERE}.rounds: {str(rounds)[:80]!r}, expected a list of rounds")
        self._is_repeating = _read_flag("is_repeating", options)
        self._rounds = [self._read_round(f"{WHERE}.rounds[{i}]", entry) for i, entry in enumerate(rounds)]

    def guess(self, session: StandInSession, anchor: int, width: int) -> list[Row]:  # noqa: ARG002
        """Return this round's candidates, none for a round that is a tree."""
        script = self._round_of(session)
        return script if isinstance(script, list) else []

    def propose_trees(
        self,
        sessions: Sequence[StandInSession],
        anchors: Sequence[int],
        max_nodes: int,
        max_depths: Sequence[int],
        width: int,  # noqa: ARG002  the tree is dictated whole
    ) -> list[DraftTree | None]:
        """Return this round's dictated trees, None for sessions whose round is candidates or past the script."""
        trees: list[DraftTree | None] = []
        for session, anchor, max_depth in zip(sessions, anchors, max_depths, strict=True):
            script = self._round_of(session)
            if not isinstance(script, tuple):
                trees.append(None)
                continue
            parents, tokens = script
            trees.append(dictated_tree(anchor, parents, tokens, max_nodes=max_nodes, max_depth=max_depth))
            session.num_rounds += 1
        return trees

    def _round_of(self, session: StandInSession) -> list[Row] | tuple[Sequence[int], Sequence[int]] | None:
        index = session.num_rounds
        if self._is_repeating and self._rounds:
            index %= len(self._rounds)
        return self._rounds[index] if index < len(self._rounds) else None

    def _read_round(self, where: str, entry: Any) -> list[Row] | tuple[Sequence[int], Sequence[int]]:
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{where}: {str(entry)[:80]!r}, expected tokens, with logprobs or parents")
        check_keys(where, entry, ("tokens", "logprobs", "parents"))
        if "parents" in entry:
            return self._read_tree(where, entry)
        depths = entry.get("tokens")
        if not isinstance(depths, (list, tuple)) or len(depths) > self.depth:
            raise ConfigError(f"{where}.tokens: {str(depths)[:80]!r}, expected at most {self.depth} lists of ids")
        tokens = [read_ids(f"{where}.tokens[{i}]", row, self.vocab_size) for i, row in enumerate(depths)]
        logprobs = entry.get("logprobs", [[-RANK_STEP * (rank + 1) for rank in range(len(row))] for row in tokens])
        return [_read_row(f"{where}[{i}]", row, _at(logprobs, i)) for i, row in enumerate(tokens)]

    def _read_tree(self, where: str, entry: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
        tokens = read_ids(f"{where}.tokens", entry.get("tokens"), self.vocab_size)
        parents = read_ids(f"{where}.parents", entry["parents"], len(tokens) + 1)
        if len(parents) != len(tokens):
            raise ConfigError(f"{where}.parents: {len(parents)} entries, expected {len(tokens)} as in tokens")
        for index, parent in enumerate(parents):
            check_integer(f"{where}.parents[{index}]", parent, 0, index)
        dictated_tree(0, parents, tokens, max_nodes=len(tokens) + 1, max_depth=len(tokens)).validate()
        return parents, tokens


def _right_tokens(session: StandInSession, depth: int) -> list[int]:
    known = (session.right_token(d) for d in range(1, depth + 1))
    return [token for token in known if token is not None]


def _read_row(where: str, tokens: Sequence[int], logprobs: Any) -> Row:
    if not isinstance(logprobs, (list, tuple)) or len(logprobs) != len(tokens):
        raise ConfigError(f"{where}.logprobs: {str(logprobs)[:80]!r}, expected one for each of {len(tokens)} tokens")
    for value in logprobs:
        if value != NEVER:
            check_range(f"{where}.logprobs", value, -1e6, 0.0)
    if len(set(tokens)) != len(tokens) or list(logprobs) != sorted(logprobs, reverse=True):
        raise ConfigError(f"{where}: {list(tokens)[:8]}, expected distinct tokens, likeliest first")
    return list(zip(tokens, logprobs, strict=True))


def _at(values: Any, index: int) -> Any:
    return values[index] if isinstance(values, (list, tuple)) and index < len(values) else None


def _read_flag(name: str, options: Mapping[str, Any]) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{WHERE}.{name}: {value!r}, expected true or false")
    return value


STAND_INS: dict[str, type[StandIn]] = {
    "right": RightDrafter,
    "wrong": WrongDrafter,
    "replay": ReplayDrafter,
    "random": RandomDrafter,
    "recall": RecallDrafter,
    "scripted": ScriptedDrafter,
}
