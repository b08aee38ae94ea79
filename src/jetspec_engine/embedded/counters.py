"""Totals since start, and the identities every finished request has to satisfy.

Knows nothing of how requests are decoded.
"""

from jetspec_engine.errors import EngineError
from jetspec_engine.records import RequestStats

OUTCOME_OF_KIND = {"stop": "finished", "length": "finished", "abort": "aborted", "error": "failed"}


def check_identities(stats: RequestStats) -> None:
    """Raise EngineError unless the histogram accounts for every round and every emitted token."""
    rounds = sum(stats.accept_histogram)
    tokens = sum(i * count for i, count in enumerate(stats.accept_histogram))
    emitted, correct = stats.num_emitted_tokens, stats.num_correct_drafts
    if rounds != stats.num_rounds:
        raise EngineError(f"accept_histogram: {rounds} rounds, expected num_rounds = {stats.num_rounds}")
    if tokens != emitted:
        raise EngineError(f"accept_histogram: {tokens} tokens, expected num_emitted_tokens = {emitted}")
    if correct > min(stats.num_proposed_drafts, emitted):
        raise EngineError(
            f"num_correct_drafts: {correct}, expected at most {stats.num_proposed_drafts} proposed, {emitted} emitted"
        )
    # Every round but one that ends the text within its drafts emits its correct drafts and a bonus.
    if not emitted - rounds <= correct <= emitted - rounds + 1:
        raise EngineError(
            f"num_correct_drafts: {correct}, expected {emitted - rounds} or one more: {emitted} tokens, {rounds} rounds"
        )


class Counters:
    """Running totals; written by the engine's thread, readable from any."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self.reset()

    def reset(self) -> None:
        """Start counting from zero."""
        names = (
            "requests_finished requests_aborted requests_failed engine_failures prompt_tokens cached_tokens "
            "emitted_tokens rounds proposed_drafts correct_drafts graph_rounds eager_rounds"
        )
        self._totals = dict.fromkeys(names.split(), 0)

    def add(self, name: str, amount: float = 1) -> None:
        """Add to one total."""
        self._totals[name] += amount

    def add_request(self, stats: RequestStats, finish_kind: str) -> None:
        """Add a finished request."""
        self.add(f"requests_{OUTCOME_OF_KIND[finish_kind]}")
        self.add("prompt_tokens", stats.num_prompt_tokens)
        self.add("cached_tokens", stats.num_cached_tokens)
        self.add("emitted_tokens", stats.num_emitted_tokens)
        self.add("rounds", stats.num_rounds)
        self.add("proposed_drafts", stats.num_proposed_drafts)
        self.add("correct_drafts", stats.num_correct_drafts)

    def totals(self) -> dict[str, float]:
        """Return a copy of the totals."""
        return dict(self._totals)
