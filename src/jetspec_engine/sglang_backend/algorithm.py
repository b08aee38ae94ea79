"""The speculative algorithm JETSPEC, as SGLang 0.5.17 asks for it.

Subclasses what the wheel offers to plugins. Written against these seams, read in the wheel: ``CustomSpecAlgo`` answers
False to ``is_dflash_family``; ``need_topk``, ``create_future_map`` and ``carries_draft_hidden_states`` are called by
the scheduler and absent from it; whether drafts carry hidden states is asked by the algorithm's *name*
(``spec_need_hidden_states``), so the answer for ours is given through the future map. Knows nothing of trees.
"""

from dataclasses import replace
from typing import Any

from sglang.srt.arg_groups.speculative_hook import _handle_dflash
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.runtime_context import get_server_args
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from jetspec_engine.sglang_backend.command_line import settings_being_read
from jetspec_engine.sglang_backend.compat import (
    block_size_of,
    gpu_bytes,
    keep_no_prefixes,
    server_facts,
    settings_of,
    share_block_size,
    share_settings,
)
from jetspec_engine.sglang_backend.models import check_pair_folders
from jetspec_engine.sglang_backend.recurrent.limits import check_room
from jetspec_engine.sglang_backend.refusals import check_server
from jetspec_engine.sglang_backend.tree_switch import captured_rows, check_tree


class JetSpecFutureMap(FutureMap):
    """Relays the bonus token only: our drafts, as DFLASH's, carry no hidden states from round to round."""

    def _lazy_init_forward_buf(self, payload: Any) -> None:
        super()._lazy_init_forward_buf(replace(payload, hidden_states=None))


class JetSpecAlgorithm(CustomSpecAlgo):
    """JETSPEC: a member of the block-draft family whose verify may be a tree."""

    def is_dflash_family(self) -> bool:
        """Stock paths ask for the family, not for DFLASH itself."""
        return True

    def supports_target_verify_for_draft(self) -> bool:
        """The draft head runs as a block of D + 1 rows."""
        return True

    def supports_grammar_overlap(self) -> bool:
        """The stock worker advances grammars inside its verify; a chain keeps that."""
        return True

    def need_topk(self) -> bool:
        """Nothing of the draft's distribution is relayed to the next round."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Only prefill/decode disaggregation would carry any, and that is refused."""
        return False

    def create_future_map(
        self, device: Any, req_to_token_pool: Any, needs_cpu_seq_lens: bool = True, needs_confidence_relay: bool = False
    ) -> JetSpecFutureMap:
        """Make the scheduler's relay from one round to the next."""
        return JetSpecFutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Check and complete SGLang's configuration, in place.

        Raises:
            ConfigError: something JETSPEC cannot run with.
            ArtifactError: a head that cannot be run as it was trained, or was made for another target.
        """
        settings = settings_being_read()
        facts = server_facts(server_args, settings)
        check_server(facts)
        if facts.recurrent is not None:
            keep_no_prefixes(server_args)
        check_pair_folders(server_args.model_path, server_args.speculative_draft_model_path)
        share_settings(server_args, settings)
        _handle_dflash(server_args)
        share_block_size(server_args)
        depth = block_size_of(server_args) - 1
        check_tree(settings.tree, settings, depth)
        server_args.speculative_num_draft_tokens = rows = captured_rows(settings, depth)[-1]
        if facts.recurrent is not None:
            requests = int(server_args.max_running_requests)
            check_room(facts.recurrent, requests=requests, rows=rows, gpu_bytes=gpu_bytes(server_args))

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """A draft is a block of D + 1 rows; the target's verify has as many rows as are asked about."""
        return block_size_of(get_server_args()) if is_draft_worker else num_draft_tokens


def worker_class(server_args: Any) -> Any:
    """Return the worker of a server: one that stays at width 1 runs stock DFLASH, line for line."""
    if settings_of(server_args).max_width > 1:
        from jetspec_engine.sglang_backend.tree_worker import TreeWorker

        return TreeWorker
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    return DFlashWorkerV2
