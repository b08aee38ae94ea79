"""A drafter that remembers the texts it has seen decoded, and drafts from memory in shapes that try a target hardest.

The first time a prompt comes nothing is known and every draft is wrong; from the second time on the rounds of a
sequence go through ``SHAPES``. So a gate needs no weights and no recordings: its oracles run first. Knows nothing of
the target.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jetspec_engine.draft.scripted_trees import comb, dictated_tree
from jetspec_engine.draft.stand_in import Row, StandIn, StandInSession, decoys
from jetspec_engine.protocol import SlotRegion
from jetspec_engine.records import GenerateRequest
from jetspec_engine.tree.record import DraftTree

# In the order of a sequence's rounds, over and over:
# right    the right token is the likeliest everywhere: everything is accepted;
# wrong    it is never among the candidates: nothing is;
# last     it is the last of W children at every depth: a deep path of non-first children;
# second   it is the second of two siblings at every depth;
# first    it is the first of two siblings at every depth;
# anywhere it stands at any rank, another one at each depth, or is missing.
SHAPES = ("right", "last", "wrong", "second", "anywhere", "first")
DICTATED = {"last": None, "second": (1, 0), "first": (0, 1)}
MAX_TEXTS = 1024
LOGPROB, STEP = -0.3, 0.01


class RecallDrafter(StandIn):
    """Drafts from the texts of earlier requests with the same prompt. It has no options."""

    option_names = ()

    def __init__(self, *, depth: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(depth=depth, vocab_size=vocab_size, options=options)
        self._texts: dict[tuple[int, ...], tuple[int, ...]] = {}

    def open(self, request: GenerateRequest, region: SlotRegion) -> StandInSession:  # noqa: ARG002 (no slot state)
        """Begin a sequence with what is remembered of its prompt."""
        return StandInSession(request, self._texts.get(tuple(request.input_ids), ()))

    def extend(self, session: StandInSession, token_ids: Sequence[int], hidden: Any) -> None:
        """Append committed ids, and remember the text so far when it is the longest of its prompt."""
        super().extend(session, token_ids, hidden)
        prompt = tuple(session.request.input_ids)
        if session.length > len(self._texts.get(prompt, ())):
            self._texts.pop(prompt, None)
            self._texts[prompt] = tuple(session.token_ids)
            while len(self._texts) > MAX_TEXTS:
                self._texts.pop(next(iter(self._texts)))

    def guess(self, session: StandInSession, anchor: int, width: int) -> list[Row]:
        """Return candidates for the shapes that candidates can say."""
        shape = self._shape(session)
        generator = np.random.default_rng([len(session.expected_ids), session.length])
        rows: list[Row] = []
        for depth in range(1, self.depth + 1):
            right = session.right_token(depth)
            tokens = decoys(anchor if right is None else right, width, self.vocab_size)
            rank = int(generator.integers(0, width + 1)) if shape == "anywhere" else 0
            if right is not None and shape != "wrong":
                tokens.insert(rank, right)
            # Nearly flat where any rank may be right, so that small budgets reach them all.
            step = STEP if shape == "anywhere" else 5.0
            rows.append([(token, LOGPROB - step * place) for place, token in enumerate(tokens[:width])])
        return rows

    def propose_trees(
        self,
        sessions: Sequence[StandInSession],
        anchors: Sequence[int],
        max_nodes: int,
        max_depths: Sequence[int],
        width: int,
    ) -> list[DraftTree | None]:
        """Return the trees of the shapes that only a tree can say, None for the others and for a width of one."""
        trees: list[DraftTree | None] = []
        for session, anchor, max_depth in zip(sessions, anchors, max_depths, strict=True):
            shape = self._shape(session)
            if width < 2 or shape not in DICTATED or session.right_token(1) is None:
                trees.append(None)
                continue
            known = (session.right_token(depth) for depth in range(1, self.depth + 1))
            right = [token for token in known if token is not None]
            before, after = DICTATED[shape] or (width - 1, 0)
            parents, tokens = comb(right, *(self._decoys(right, count) for count in (before, after)))
            trees.append(dictated_tree(anchor, parents, tokens, max_nodes=max_nodes, max_depth=max_depth))
            session.num_rounds += 1
        return trees

    def _decoys(self, right: Sequence[int], count: int) -> list[list[int]]:
        return [decoys(token, count, self.vocab_size) for token in right]

    @staticmethod
    def _shape(session: StandInSession) -> str:
        return SHAPES[session.num_rounds % len(SHAPES)]
