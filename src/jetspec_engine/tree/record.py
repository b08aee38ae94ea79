"""The draft tree: one round's guesses as flat arrays.

Knows nothing of logits, rules or models; it only says which token hangs below which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jetspec_engine.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """N nodes in topological order; node 0 is the root and holds the anchor, the last emitted token.

    A parent's index is below its children's, and siblings come best first. Constructing checks nothing, because the
    engine makes one tree a round; call ``validate`` on trees that a user or a script made.

    Attributes:
        tokens: (N,) int64 token ids.
        parents: (N,) int64 index of each node's parent, -1 for the root.
        depths: (N,) int64 edges to the root, 0 for the root; a node's position is context length + depth.
        logprobs: (N,) float32 cumulative log-probability in nats of the path from the root, 0 for the root.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    depths: NDArray[np.int64]
    logprobs: NDArray[np.float32]

    @classmethod
    def chain(cls, token_ids: Sequence[int] | ArrayLike, logprobs: ArrayLike | None = None) -> Self:
        """Return the chain of the ids, the first one as the root.

        Args:
            token_ids: (N,) ids, N >= 1.
            logprobs: (N,) cumulative log-probabilities in nats, the first one 0; None for zeros (a prompt).
        """
        tokens = np.asarray(token_ids, dtype=np.int64)
        count = len(tokens)
        totals = np.zeros(count, np.float32) if logprobs is None else np.asarray(logprobs, np.float32)
        steps = np.arange(-1, count, dtype=np.int64)
        return cls(tokens, steps[:-1], steps[1:], totals)

    @classmethod
    def root_only(cls, anchor: int) -> Self:
        """Return the tree without drafts: a verify of it is plain decoding."""
        return cls.chain((anchor,))

    @property
    def num_nodes(self) -> int:
        """N, the root included."""
        return len(self.tokens)

    @property
    def max_depth(self) -> int:
        """Depth of the deepest node."""
        return int(self.depths.max())

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return int(self.depths[-1]) == len(self.tokens) - 1

    def validate(self) -> Self:
        """Check every promise of the class and return the tree itself.

        Raises:
            ConfigError: naming the first node that breaks a promise.
        """
        self._check_arrays()
        seen: dict[tuple[int, int], int] = {}
        youngest: dict[int, int] = {}
        for node in range(self.num_nodes):
            self._check_links(node)
            self._check_logprob(node, youngest)
            parent, token = int(self.parents[node]), int(self.tokens[node])
            other = seen.setdefault((parent, token), node)
            if other != node:
                raise ConfigError(f"tree: nodes {other} and {node} are siblings with the same token {token}")
            youngest[parent] = node
        return self

    def _check_arrays(self) -> None:
        for name in ("tokens", "parents", "depths", "logprobs"):
            array: Any = getattr(self, name)
            expected = np.float32 if name == "logprobs" else np.int64
            if not isinstance(array, np.ndarray) or array.dtype != expected or array.ndim != 1:
                kind = getattr(array, "dtype", type(array).__name__)
                raise ConfigError(f"tree.{name}: {kind}, expected a 1-d array of {np.dtype(expected).name}")
            if len(array) != len(self.tokens) or len(array) == 0:
                raise ConfigError(f"tree.{name}: {len(array)} entries, expected {max(1, len(self.tokens))}")

    def _check_links(self, node: int) -> None:
        token, parent, depth = int(self.tokens[node]), int(self.parents[node]), int(self.depths[node])
        if token < 0:
            raise ConfigError(f"tree.tokens[{node}]: {token}, expected a token id >= 0")
        if node == 0:
            if parent != -1:
                raise ConfigError(f"tree.parents[0]: {parent}, expected -1 for the root")
            if depth != 0:
                raise ConfigError(f"tree.depths[0]: {depth}, expected 0 for the root")
            return
        if not 0 <= parent < node:
            raise ConfigError(f"tree.parents[{node}]: {parent}, expected a node in [0, {node - 1}]")
        if depth != self.depths[parent] + 1:
            raise ConfigError(
                f"tree.depths[{node}]: {depth}, expected {self.depths[parent] + 1}, its parent's plus one"
            )

    def _check_logprob(self, node: int, youngest: dict[int, int]) -> None:
        logprob, parent = self.logprobs[node], int(self.parents[node])
        if node == 0:
            if logprob != 0:
                raise ConfigError(f"tree.logprobs[0]: {logprob}, expected 0 for the root")
            return
        if not logprob <= self.logprobs[parent]:
            raise ConfigError(
                f"tree.logprobs[{node}]: {logprob}, expected at most its parent's {self.logprobs[parent]}"
            )
        elder = youngest.get(parent)
        if elder is not None and logprob > self.logprobs[elder]:
            raise ConfigError(f"tree: node {node} is likelier than its elder sibling {elder}, expected best first")
