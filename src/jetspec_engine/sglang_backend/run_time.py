"""Four of SGLang's own functions, hooked: rows long enough for a tree's reserve, a draft's input in its own dtype, and
the tree switched and told at run time.

SGLang's control messages carry numbers only and a fixed list of names; ours travel as ``jetspec_*`` numbers and never
reach SGLang's own handling. Knows a worker's switch and nothing of its rounds.
"""

import logging
from collections.abc import Callable
from typing import Any

from jetspec_engine.config import LINEAR, TreeConfig
from jetspec_engine.errors import ConfigError, JetspecError
from jetspec_engine.sglang_backend.args import ALGORITHM

PREFIX = "jetspec_"
RELOAD_SCRIPT = "jetspec_reload_script"
SCORED_TOKEN = "jetspec_scored_token"
TREE_STATE = "jetspec_tree"


def row_headroom(original: Callable[[Any], int], server_args: Any) -> int:
    """Return the slots of a request's row beyond the context length (around SGLang's function of that purpose).

    A round reserves twice its verify rows behind the committed tokens; at the context limit SGLang's own headroom of
    one time the rows would let the reserve run into the next request's row.
    """
    extra = original(server_args)
    if str(server_args.speculative_algorithm or "").upper() != ALGORITHM:
        return extra
    return max(extra, 4 + 2 * int(server_args.speculative_num_draft_tokens) + int(server_args.page_size))


def forward_options(
    original: Callable[..., dict[str, Any]], runner: Any, forward_batch: Any, proxy: Any
) -> dict[str, Any]:
    """Return what an eager forward is given (around ``ModelRunner``'s method).

    SGLang casts given embeddings to bfloat16; a block draft in another dtype, which is what the embeddings of a float32
    target are, then meets weights of its own dtype and fails. A captured draft is not affected.
    """
    options = original(runner, forward_batch, proxy)
    if runner.is_draft_worker and runner.spec_algorithm.is_dflash_family() and "input_embeds" in options:
        options["input_embeds"] = forward_batch.input_embeds
    return options


def set_internal_state(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Switch the tree, reload the draft script or score a token where the message is ours (around ``Scheduler``'s).

    Returns:
        SGLang's answer; ``updated`` is False while requests run, and for a tree the server was not started for.
    """
    given = request.server_args
    if not any(name.startswith(PREFIX) for name in given):
        return original(scheduler, request)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    from jetspec_engine.sglang_backend.tree_switch import tree_from_numbers

    worker = scheduler.draft_worker
    is_idle = scheduler.is_fully_idle()
    try:
        if SCORED_TOKEN in given:
            worker.scored_token = int(given[SCORED_TOKEN])
        elif is_idle and given.get(RELOAD_SCRIPT):
            worker.reload_script()
        elif is_idle:
            _switch(worker, tree_from_numbers(given))
    except (JetspecError, AttributeError) as error:
        logging.getLogger("sglang.jetspec").warning("jetspec: not switched: %s", error)
        is_idle = False
    return SetInternalStateReqOutput(updated=is_idle)


def _switch(worker: Any, tree: TreeConfig) -> None:
    """Switch the tree; a server that stays linear runs SGLang's own worker, which has one tree."""
    if hasattr(worker, "tree_switch"):
        worker.tree_switch.set(tree)
    elif tree.width > 1:
        raise ConfigError(f"tree.width: {tree.width}, the server was started for width 1 only")


def internal_state(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Answer with SGLang's state and the tree that runs now (around ``Scheduler.get_internal_state``)."""
    answer = original(scheduler, request)
    if getattr(scheduler.spec_algorithm, "name", "") == ALGORITHM:
        switch = getattr(scheduler.draft_worker, "tree_switch", None)
        answer.internal_state[TREE_STATE] = (LINEAR if switch is None else switch.tree).to_mapping()
    return answer
