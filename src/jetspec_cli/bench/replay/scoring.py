"""Every arm replayed on every recording, and which cells deserve to be measured.

Knows nothing of time: what is chosen follows from the recordings alone, so that a run that was killed and resumed
measures the same cells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from jetspec_cli.bench.plan import Arm, BenchSpec
from jetspec_cli.bench.rows import Row
from jetspec_cli.prompts import Prompt
from jetspec_engine import registry
from jetspec_engine.records import Recording, ReplayedRound


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One arm on one prompt.

    Attributes:
        prompt_id, text_class: the prompt.
        num_prompt_tokens: its tokens.
        rounds: those after the prefill.
    """

    prompt_id: str
    text_class: str
    num_prompt_tokens: int
    rounds: tuple[ReplayedRound, ...]

    @property
    def num_emitted_tokens(self) -> int:
        """Tokens of the answer."""
        return 1 + sum(one.num_emitted for one in self.rounds)

    @property
    def contexts(self) -> list[int]:
        """Committed tokens before each round."""
        found, length = [], self.num_prompt_tokens
        for one in self.rounds:
            found.append(length)
            length += one.num_emitted
        return found

    def counters(self) -> Row:
        """Return what a live row would count."""
        sizes = [1, *(one.num_emitted for one in self.rounds)]
        return {
            "prompt_id": self.prompt_id,
            "class": self.text_class,
            "num_rounds": len(sizes),
            "num_emitted_tokens": self.num_emitted_tokens,
            "num_proposed_drafts": sum(one.num_nodes - 1 for one in self.rounds),
            "num_correct_drafts": sum(one.num_correct for one in self.rounds),
            "accept_histogram": [sizes.count(size) for size in range(max(sizes) + 1)],
        }


def replay_all(
    spec: BenchSpec, prompts: Sequence[Prompt], recordings: Mapping[str, Recording]
) -> dict[Arm, list[Replayed]]:
    """Return every arm's rounds on every recorded prompt. Raises UnavailableError without numpy."""
    replay = registry.replay()
    return {
        arm: [
            Replayed(
                prompt_id=prompt.prompt_id,
                text_class=prompt.text_class or "unclassed",
                num_prompt_tokens=recordings[prompt.prompt_id].num_prompt_tokens,
                rounds=tuple(replay(recordings[prompt.prompt_id], arm.tree)),
            )
            for prompt in prompts
            if prompt.prompt_id in recordings
        ]
        for arm in spec.arms
        if arm.tree is not None
    }


def row_count(replayed: Sequence[Replayed]) -> int:
    """Return the median nodes of an arm's rounds; 1 when it has none."""
    return int(median([one.num_nodes for each in replayed for one in each.rounds] or [1]))


def accept_length(replayed: Sequence[Replayed]) -> float:
    """Return emitted tokens / rounds, pooled."""
    return sum(each.num_emitted_tokens for each in replayed) / sum(1 + len(each.rounds) for each in replayed)


def choose_live(replayed: Mapping[Arm, Sequence[Replayed]]) -> list[Arm]:
    """Return the tree arms on the Pareto front of accept length and verify rows, fewest rows first.

    More rows never make a round cheaper, so a cell that another one beats with no more rows cannot be the fastest.
    Of equal cells the first one of the grid stands for all.
    """
    trees = [(row_count(each), -accept_length(each), place) for place, (_, each) in _trees(replayed)]
    arms = {place: arm for place, (arm, _) in _trees(replayed)}
    front: list[Arm] = []
    best = 0.0
    for _, negated, place in sorted(trees):
        if -negated > best:
            best = -negated
            front.append(arms[place])
    return front


def _trees(replayed: Mapping[Arm, Sequence[Replayed]]) -> list[tuple[int, tuple[Arm, Any]]]:
    return [(place, pair) for place, pair in enumerate(replayed.items()) if not pair[0].is_baseline]
