"""What a tree is worth by the draft's own account.

Knows nothing of the target: measured accept length is another thing, and a gap between the two says how honest the
draft head's probabilities are.
"""

import numpy as np

from jetspec_engine.tree.record import DraftTree


def expected_accept_length(tree: DraftTree) -> float:
    """Return the expected tokens of a round, bonus included, if the drafts were as likely as the draft head says.

    A node is accepted with the probability of its path, and the bonus token always comes: the sum over all nodes, the
    root standing for the bonus token.
    """
    return float(np.exp(tree.logprobs.astype(np.float64)).sum())
