"""SGLang's DFLASH worker with tree rounds: draft a block, build a tree, verify all its nodes at once, commit a path.

Subclasses what the wheel ships and replaces one decode round. A batch that needs sampling, a grammar or penalties goes
through the stock linear round, with the tree set to a chain for it, and so does width 1. SGLang's one number of draft
tokens is the largest number of verify rows here (it sizes rows, reserves and buffers); the draft block stays D + 1.
Nothing of a round waits for the device. Knows SGLang 0.5.17's worker; the tree itself is ``tree_drafter``'s.
"""

from pathlib import Path
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.runner import DecodeCudaGraphRunner
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import (
    SIMULATE_ACC_LEN,
    SIMULATE_ACC_METHOD,
    _sample_simulated_acc_len,
)
from torch import Tensor

from jetspec_engine.config import LINEAR
from jetspec_engine.sglang_backend.compat import block_size_of, settings_of
from jetspec_engine.sglang_backend.draft_script import DraftScript
from jetspec_engine.sglang_backend.recurrent.backend import attention_pool, teach_target
from jetspec_engine.sglang_backend.round_block import RoundBlock
from jetspec_engine.sglang_backend.round_state import PathMover, RoundShape, RoundState
from jetspec_engine.sglang_backend.scores import NO_TOKEN, SCORES, scores_of
from jetspec_engine.sglang_backend.tree_drafter import TreeDrafter, VocabShard
from jetspec_engine.sglang_backend.tree_round import Outcome
from jetspec_engine.sglang_backend.tree_switch import TreeSwitch
from jetspec_engine.sglang_backend.verify_backend import check_layers
from jetspec_engine.tree.accept_batched import AcceptedBatch


class TreeWorker(DFlashWorkerV2):
    """The worker of a server whose width may be above 1. Arguments as ``DFlashWorkerV2``."""

    def __init__(self, server_args: Any, **others: Any) -> None:
        self._settings = settings_of(server_args)
        block = block_size_of(server_args)
        # This copy of the configuration is the draft's alone.
        server_args.override("jetspec.draft_block", speculative_num_draft_tokens=block)
        super().__init__(server_args=server_args, **others)
        self.tree_switch = TreeSwitch(self._settings, block - 1)
        self._runners: dict[int, Any] = {}
        self.scored_token = NO_TOKEN

    def init_attention_backends(self) -> None:
        """Also teach the target's backend trees; the scheduler captures the target's graphs after this."""
        super().init_attention_backends()
        runner = self.model_runner
        pool, requests = runner.token_to_kv_pool, runner.req_to_token_pool
        attended = attention_pool(pool)
        heads, head_width = check_layers(runner.model, runner.dtype, attended)
        shape = RoundShape(
            requests=requests.req_to_token.shape[0] + self.ps.tp_size, rows=self.tree_switch.captured,
            depth=self.block_size - 1, width=self._settings.max_width, row_width=requests.req_to_token.shape[1],
            heads=heads, head_width=head_width,
        )  # fmt: skip
        has_kernels = can_run_kernels(self.device)
        self._state = RoundState(shape, self.device, has_kernels=has_kernels)
        self._mover = PathMover([*attended.k_buffer, *attended.v_buffer], has_kernels=has_kernels)
        runner.attn_backend = teach_target(runner, self._state, has_kernels=has_kernels)
        self._script = None
        if self._settings.draft_script is not None:
            self._script = DraftScript(positions=shape.row_width, width=shape.width, device=self.device)
            self.reload_script()
        vocab = VocabShard(runner.model.lm_head, get_tp_group(), has_kernels=has_kernels)
        self._drafter = TreeDrafter(vocab=vocab, state=self._state, script=self._script)

    def init_cuda_graphs(self) -> None:
        """Also capture the target's verify for every number of rows but the largest, which SGLang has captured."""
        super().init_cuda_graphs()
        largest = self.model_runner.decode_cuda_graph_runner
        if isinstance(largest, DecodeCudaGraphRunner):
            *smaller, rows = self.tree_switch.captured
            self._runners[rows] = largest
            for rows in smaller:
                self._runners[rows] = type(largest)(self.model_runner, speculative_num_draft_tokens=rows)

    def _maybe_build_draft_sampler(self) -> TreeDrafter:
        """Fold our drafter into the draft's graph in place of the stock argmax; it offers that too."""
        return self._drafter

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None) -> Any:
        """Run one batch: a prefill, a tree round, or a linear round where trees are not for it."""
        is_round = not (batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle())
        if not is_round or batch.spec_info is None:
            result = super().forward_batch_generation(batch, on_publish, grammar_barrier)
            if self.scored_token != NO_TOKEN and batch.forward_mode.is_extend():
                rows = scores_of(result.logits_output.next_token_logits, self.scored_token)
                result.logits_output.customized_info = {SCORES: rows}
            return result
        self._state.prefix_lens[: len(batch.seq_lens)].copy_(batch.seq_lens)
        is_linear = self.tree_switch.tree.width == 1 or not _is_plain_greedy(batch)
        self._state.set_tree(LINEAR if is_linear else self.tree_switch.tree)
        self._use_rows(self.block_size if is_linear else self.tree_switch.rows)
        if is_linear:
            result = super().forward_batch_generation(batch, on_publish, grammar_barrier)
        else:
            result = self._tree_round(batch, on_publish)
        result.jetspec_nodes = self.block_size if is_linear else self.tree_switch.num_nodes
        return result

    def reload_script(self) -> None:
        """Read the draft script again. Raises ConfigError; without a script there is nothing to do."""
        if self._script is not None:
            self._script.load(Path(str(self._settings.draft_script)))

    def _use_rows(self, rows: int) -> None:
        if self._runners:
            self.model_runner.decode_cuda_graph_runner = self._runners[rows]

    def _tree_round(self, batch: Any, on_publish: Any) -> Any:
        batch.seq_lens.record_stream(torch.get_device_module(self.device).current_stream())
        count, rows = len(batch.seq_lens), self.tree_switch.rows
        prefix = batch.seq_lens
        laid = self._state.lay_block(
            batch.spec_info.bonus_tokens, prefix, batch.req_pool_indices,
            self.model_runner.req_to_token_pool.req_to_token, rows=rows, mask_id=int(self._mask_token_id),
        )  # fmt: skip
        self._draft(batch, laid)
        target = self._verify(batch, laid.node_slots[:, :rows])
        logits = target.logits_output
        target_ids = logits.next_token_logits.argmax(dim=-1).view(count, rows)
        gain = self._accept(target_ids)
        accepted = gain.accepted
        self._commit_states(batch, accepted)
        new_seq_lens = prefix + gain.lens
        if on_publish is not None:
            on_publish(new_seq_lens)
        self._mover.move(laid.node_slots, accepted)
        self._give_context(gain.lens, accepted.path, laid, logits.hidden_states)
        logits.hidden_states = None
        return GenerationBatchResult(
            logits_output=logits, next_token_ids=gain.tokens.reshape(-1), accept_lens=gain.lens,
            can_run_cuda_graph=target.can_run_cuda_graph, speculative_num_draft_tokens=self.block_size,
            next_draft_input=self._make_next_draft_input_decode(
                bonus_tokens=accepted.bonus, new_seq_lens=new_seq_lens
            ),
            new_seq_lens=new_seq_lens,
        )  # fmt: skip

    def _draft(self, batch: Any, laid: RoundBlock) -> None:
        """Run the head on a block a request and leave the trees in the plan."""
        count, block = laid.ids.shape
        embedded = self.target_worker.model_runner.model.get_input_embeddings()(laid.ids)
        lens = _host_lens(batch, block)
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY, batch_size=count, input_ids=laid.ids.view(-1),
            req_pool_indices=batch.req_pool_indices, seq_lens=batch.seq_lens, out_cache_loc=laid.slots.view(-1),
            seq_lens_sum=int(lens.sum()), seq_lens_cpu=lens, positions=laid.positions.view(-1),
            input_embeds=embedded.view(count * block, -1), spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info, capture_hidden_mode=CaptureHiddenMode.NULL,
        )  # fmt: skip
        with torch.inference_mode():
            drafted = self.draft_model_runner.forward(forward_batch)
        if not drafted.can_run_graph:
            self._drafter(drafted.logits_output.hidden_states, forward_batch.input_ids)

    def _verify(self, batch: Any, slots: Tensor) -> Any:
        """Run the target on every node."""
        count, rows = slots.shape
        tokens, positions = self._state.tokens_and_positions(count, rows)
        verify = DFlashVerifyInput(
            draft_token=tokens.reshape(-1), positions=positions.reshape(-1), draft_token_num=rows,
            custom_mask=None, capture_hidden_mode=CaptureHiddenMode.FULL,
        )  # fmt: skip
        batch.out_cache_loc = slots.reshape(-1)
        kept = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu = _host_lens(batch, rows)
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        forward_batch, _ = verify.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )

    def _accept(self, target_ids: Tensor) -> Outcome:
        if SIMULATE_ACC_LEN <= 0:
            return self._state.accept(target_ids)
        tokens = _sample_simulated_acc_len(
            SIMULATE_ACC_LEN, SIMULATE_ACC_METHOD, min(target_ids.shape[1], self.block_size)
        )
        return self._state.accept_by_decree(target_ids, tokens - 1)

    def _commit_states(self, batch: Any, accepted: AcceptedBatch) -> None:
        """Have SGLang take the last accepted node's recurrent state, the root's where no draft was right."""
        if self._need_mamba_verify_commit:
            nodes = accepted.path.gather(1, accepted.num_correct_drafts.unsqueeze(1)).squeeze(1)
            self.model_runner.attn_backend.update_mamba_state_after_mtp_verify(
                last_correct_step_indices=nodes, mamba_track_indices=None, mamba_steps_to_track=None,
                model=self.model_runner.model, req_pool_indices=batch.req_pool_indices,
            )  # fmt: skip

    def _give_context(self, lens: Tensor, path: Tensor, laid: RoundBlock, hidden: Tensor) -> None:
        """Write the accepted nodes' hidden states into the head's cache, at the slots behind the prefix."""
        rows = hidden.view(len(path), -1, hidden.shape[-1])
        context = rows.gather(1, path.clamp(min=0).unsqueeze(2).expand(-1, -1, rows.shape[2]))
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=context.view(-1, rows.shape[2]), cache_loc=laid.slots.view(-1), cache_loc_2d=laid.slots,
            positions=laid.positions.view(-1), commit_lens=lens,
        )  # fmt: skip


def can_run_kernels(device: Any) -> bool:
    """Say whether a round runs kernels; elsewhere, which means in tests, their torch twins."""
    return torch.device(device).type == "cuda"


def _host_lens(batch: Any, rows: int) -> Tensor:
    """Upper bounds of the lengths with the rows of this forward, on the host; what backends plan with."""
    if batch.seq_lens_cpu is not None:
        lens: Tensor = (batch.seq_lens_cpu + rows).to(torch.int32)
    else:
        lens = batch.spec_info.reserved_seq_lens_cpu.clone()
    return lens


def _is_plain_greedy(batch: Any) -> bool:
    """Say whether nothing but the logits decides the batch's next tokens."""
    info = batch.sampling_info
    if batch.has_grammar or info is None:
        return info is None and not batch.has_grammar
    penalties = info.penalizer_orchestrator
    return bool(
        info.is_all_greedy
        and not (penalties is not None and penalties.is_required)
        and getattr(info, "acc_linear_penalties", None) is None
        and getattr(info, "logit_bias", None) is None
        and not info.has_custom_logit_processor
    )
