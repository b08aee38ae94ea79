"""The builder of each tree rule, on the CPU: the one table of them. Knows nothing of what calls them."""

from jetspec_engine.protocol import TreeBuilder
from jetspec_engine.tree.best_first import build_best_first
from jetspec_engine.tree.published import build_accum_logp, build_top2gap

# The names are those of ``config.TREE_RULES``.
BUILDERS: dict[str, TreeBuilder] = {
    "best_first": build_best_first,
    "top2gap": build_top2gap,
    "accum_logp": build_accum_logp,
}
