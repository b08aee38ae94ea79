"""The plugin's entry point: SGLang calls ``activate`` in each of its processes before it does anything else.

Registers the algorithm and hooks a dozen functions. SGLang logs a plugin's failure and goes on without it, so a server
must be asked whether the plugin is active (``launch`` does). Importing this module imports neither sglang nor torch.
"""

import multiprocessing
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

from jetspec_engine.sglang_backend import causality, counters, float_layers, run_time
from jetspec_engine.sglang_backend.args import ALGORITHM
from jetspec_engine.sglang_backend.command_line import with_our_options, with_our_settings
from jetspec_engine.sglang_backend.recurrent import hooks
from jetspec_engine.sglang_backend.refusals import check_version

_MANAGERS = "sglang.srt.managers"
_EXECUTOR = "sglang.srt.model_executor"
# What stands around each of SGLang's functions.
HOOKS: Mapping[str, Callable[..., Any]] = {
    "sglang.srt.server_args.ServerArgs.add_cli_args": with_our_options,
    "sglang.srt.server_args.ServerArgs.from_cli_args": with_our_settings,
    "sglang.srt.models.dflash._get_dflash_layer_attention_params": causality.layer_attention,
    "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len": run_time.row_headroom,
    f"{_EXECUTOR}.model_runner.ModelRunner._extend_forward_kwargs": run_time.forward_options,
    f"{_MANAGERS}.scheduler.Scheduler.set_internal_state": run_time.set_internal_state,
    f"{_MANAGERS}.scheduler.Scheduler.get_internal_state": run_time.internal_state,
    f"{_MANAGERS}.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens": (
        counters.note_rounds
    ),
    f"{_MANAGERS}.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics": counters.report_rounds,
    "sglang.srt.layers.layernorm.RMSNorm.forward_cuda": float_layers.normalise_or_activate,
    "sglang.srt.layers.activation.SiluAndMul.forward_cuda": float_layers.normalise_or_activate,
    "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_cuda": float_layers.rotate,
    "sglang.srt.mem_cache.memory_pool.conv_window_dedup_enabled": hooks.windows_may_overlap,
    f"{_EXECUTOR}.model_runner_components.attention_backend_setup.configure_aux_hidden_state_capture": (
        hooks.capture_layers
    ),
}
HTTP_SERVER = "sglang.srt.entrypoints.http_server._setup_and_run_http_server"


def activate() -> None:
    """Register JETSPEC and hook SGLang's command line and draft model (the entry point).

    Raises:
        UnavailableError: another version of SGLang; nothing is registered or hooked then.
    """
    check_version(metadata.version("sglang"))
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from jetspec_engine.sglang_backend.algorithm import JetSpecAlgorithm, worker_class

    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=JetSpecAlgorithm)(worker_class)
    for hooked, hook in HOOKS.items():
        HookRegistry.register(hooked, hook, HookType.AROUND)
    if multiprocessing.parent_process() is None:
        # Only a server's first process speaks HTTP; the others need not import its server.
        from jetspec_engine.sglang_backend.routes import serve_with_our_routes

        HookRegistry.register(HTTP_SERVER, serve_with_our_routes, HookType.AROUND)
