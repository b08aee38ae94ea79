"""Trees dictated node by node, for drafts that no candidates per depth can express within a budget.

A deep path of non-first children is such a draft: candidates would need ``width ** depth`` nodes to reach it. Knows
nothing of who dictates.
"""

from collections.abc import Sequence

import numpy as np

from jetspec_engine.tree.record import DraftTree

LOGPROB_STEP = 0.01


def dictated_tree(
    anchor: int, parents: Sequence[int], tokens: Sequence[int], *, max_nodes: int, max_depth: int
) -> DraftTree:
    """Return the tree of an anchor and drafts, without the nodes that go beyond the limits.

    Args:
        anchor: token of the root.
        parents: per draft, its parent: 0 is the root, ``i + 1`` the i-th draft; parents come before children.
        tokens: per draft, its token.
        max_nodes: B, root included.
        max_depth: deepest useful draft.

    Returns:
        A valid tree; log-probabilities only order siblings as given.
    """
    kept = {0: 0}
    ids, links, depths, logprobs = [anchor], [-1], [0], [0.0]
    children = [0]
    for index, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        place = kept.get(parent)
        if place is None or depths[place] >= max_depth or len(ids) >= max_nodes:
            continue
        kept[index + 1] = len(ids)
        children[place] += 1
        children.append(0)
        ids.append(token)
        links.append(place)
        depths.append(depths[place] + 1)
        logprobs.append(logprobs[place] - LOGPROB_STEP * children[place])
    return DraftTree(
        tokens=np.array(ids, dtype=np.int64),
        parents=np.array(links, dtype=np.int64),
        depths=np.array(depths, dtype=np.int64),
        logprobs=np.array(logprobs, dtype=np.float32),
    )


def comb(
    right_tokens: Sequence[int],
    decoy_rows: Sequence[Sequence[int]],
    younger_rows: Sequence[Sequence[int]] | None = None,
) -> tuple[list[int], list[int]]:
    """Return parents and tokens of a tree whose right path takes the last child everywhere, or an earlier one.

    Args:
        right_tokens: one per depth.
        decoy_rows: per depth, the leaves that stand before the right token.
        younger_rows: per depth, the leaves that stand after it; none when left out.
    """
    parents: list[int] = []
    tokens: list[int] = []
    spine = 0
    for right, row, younger in zip(right_tokens, decoy_rows, younger_rows or [()] * len(right_tokens), strict=True):
        parents.extend([spine] * (len(row) + 1 + len(younger)))
        tokens.extend([*row, right, *younger])
        spine = len(tokens) - len(younger)
    return parents, tokens
