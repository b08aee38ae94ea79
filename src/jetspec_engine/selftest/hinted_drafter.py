"""A draft head that is told some of the right tokens, so that a random one drafts deep trees of every shape.

At most depths the recorded token stands at a rank drawn from the position, so accepted paths go through first and
later children; at the others the head is on its own, so whatever changes its state changes what is accepted. Knows
nothing of the target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from jetspec_engine.draft.head_drafter import HeadDrafter, HeadSession
from jetspec_engine.protocol import Candidates, SlotRegion
from jetspec_engine.records import GenerateRequest

HINT_RATE = 0.65
# Log-probabilities of a hinted depth are nearly flat, so that a small budget reaches every rank.
FIRST_LOGPROB, STEP = -0.3, 0.05


@dataclass
class HintedSession(HeadSession):
    """A sequence whose whole text may be known.

    Attributes:
        text: recorded prompt and continuation; empty when the prompt was not recorded.
    """

    text: tuple[int, ...] = field(default=(), kw_only=True)


class HintedDrafter(HeadDrafter):
    """``HeadDrafter`` with hints from ``texts``: prompt to prompt and continuation. Fill it before requests come."""

    texts: Mapping[tuple[int, ...], tuple[int, ...]]

    def open(self, request: GenerateRequest, region: SlotRegion) -> HintedSession:
        """Begin a sequence."""
        session = super().open(request, region)
        return HintedSession(session.region, text=self.texts.get(request.input_ids, ()))

    def propose(self, sessions: Sequence[Any], anchors: Sequence[int], width: int) -> list[Candidates]:
        """Return the head's candidates with hints put in."""
        offers = super().propose(sessions, anchors, width)
        return [self._hinted(session, offer) for session, offer in zip(sessions, offers, strict=True)]

    def _hinted(self, session: HintedSession, offer: Candidates) -> Candidates:
        tokens, logprobs = offer.tokens.clone(), offer.logprobs.clone()
        width = tokens.shape[1]
        generator = np.random.default_rng(session.length)
        for depth in range(len(tokens)):
            is_hinted, rank = generator.random() < HINT_RATE, int(generator.integers(0, width, 2).min())
            position = session.length + 1 + depth
            if not is_hinted or position >= len(session.text) or logprobs[depth, 0] == -torch.inf:
                continue
            right = session.text[position]
            others = [token for token in tokens[depth].tolist() if token != right]
            tokens[depth] = torch.tensor([*others[:rank], right, *others[rank:]][:width])
            logprobs[depth] = FIRST_LOGPROB - STEP * torch.arange(width)
        return Candidates(tokens=tokens, logprobs=logprobs)
