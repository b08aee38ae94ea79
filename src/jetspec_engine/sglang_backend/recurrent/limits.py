"""What JETSPEC cannot run with on SGLang when the target has recurrent layers: one line that names the option.

Imports nothing of sglang: ``compat`` gathers the facts. Knows nothing of how states are computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jetspec_engine.errors import ConfigError

GATED_DELTA = "gated delta rule"
# The states lie as Triton's kernels write them; what else writes them is not known to lay them out alike.
STATE_BACKENDS = ("triton",)


@dataclass(frozen=True, kw_only=True)
class RecurrentFacts:
    """What a resolved SGLang configuration says of a target's recurrent layers.

    Attributes:
        kind: of the layers; only ``GATED_DELTA`` is run.
        backends: kernels by SGLang's option, without those left to the others.
        options: SGLang's options that are on and keep states in another way.
        row_bytes: of the states of one verify row of one request on one GPU, 0 where that is not known.
    """

    kind: str = GATED_DELTA
    backends: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    row_bytes: int = 0


def check_recurrent(facts: RecurrentFacts, *, max_width: int) -> None:
    """Raise ConfigError for recurrent layers that cannot be verified, at any width or in a tree."""
    if facts.kind != GATED_DELTA:
        raise ConfigError(
            f"target: recurrent layers of {facts.kind}, JETSPEC runs those of the {GATED_DELTA}",
            hint="use plain SGLang",
        )
    if max_width == 1:
        return
    linear = "or stay linear with --speculative-dflash-tree-width 1 --speculative-dflash-tree-max-width 1"
    for option, backend in facts.backends.items():
        if backend not in STATE_BACKENDS:
            raise ConfigError(
                f"{option}: {backend}, a tree's verify reads the states of {', '.join(STATE_BACKENDS)}", hint=linear
            )
    for option in facts.options:
        raise ConfigError(f"{option}: keeps recurrent states otherwise than a tree's verify reads them", hint=linear)


def check_room(facts: RecurrentFacts, *, requests: int, rows: int, gpu_bytes: int) -> None:
    """Raise ConfigError when the states of drafts alone are more than a GPU has, before SGLang runs out of memory.

    Args:
        facts: of the target.
        requests: most that run at once; SGLang's pool has one more.
        rows: of the largest verify.
        gpu_bytes: memory of one GPU, 0 where that is not known.
    """
    needed = (requests + 1) * rows * facts.row_bytes
    if not gpu_bytes or needed <= gpu_bytes:
        return
    fitting = gpu_bytes // (rows * facts.row_bytes) - 1
    budget = gpu_bytes // ((requests + 1) * facts.row_bytes)
    fewer = f"--max-running-requests {fitting}" if fitting > 0 else "fewer requests do not help"
    raise ConfigError(
        f"--max-running-requests: {requests} with {rows} verify rows keep {needed / 1e9:.1f} GB of recurrent states, "
        f"the GPU has {gpu_bytes / 1e9:.1f} GB",
        hint=f"at most {fewer}, or budgets up to {budget}; weights and keys need room as well",
    )
