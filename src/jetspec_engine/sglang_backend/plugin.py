"""The plugin's entry point: SGLang calls ``activate`` in each of its processes before it does anything else.

Registers the algorithm and hooks a dozen functions. SGLang logs a plugin's failure and goes on without it, so a server
must be asked whether the plugin is active (``launch`` does). Importing this module imports neither sglang nor torch.
"""

import multiprocessing
from importlib import metadata

from jetspec_engine.sglang_backend import causality, counters, float_layers, recurrent_hooks, run_time
from jetspec_engine.sglang_backend.args import ALGORITHM
from jetspec_engine.sglang_backend.command_line import with_our_options, with_our_settings
from jetspec_engine.sglang_backend.refusals import check_version

_COMPONENTS = "sglang.srt.managers.scheduler_components"
_COMPONENTS_OF_RUNNER = "sglang.srt.model_executor.model_runner_components"
HOOKED = {
    "add_cli_args": "sglang.srt.server_args.ServerArgs.add_cli_args",
    "from_cli_args": "sglang.srt.server_args.ServerArgs.from_cli_args",
    "attention": "sglang.srt.models.dflash._get_dflash_layer_attention_params",
    "row_headroom": "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
    "forward_options": "sglang.srt.model_executor.model_runner.ModelRunner._extend_forward_kwargs",
    "set_internal_state": "sglang.srt.managers.scheduler.Scheduler.set_internal_state",
    "internal_state": "sglang.srt.managers.scheduler.Scheduler.get_internal_state",
    "round": f"{_COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
    "counters": "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics",
    "norm": "sglang.srt.layers.layernorm.RMSNorm.forward_cuda",
    "activation": "sglang.srt.layers.activation.SiluAndMul.forward_cuda",
    "rotation": "sglang.srt.layers.rotary_embedding.base.RotaryEmbedding.forward_cuda",
    "windows": "sglang.srt.mem_cache.memory_pool.conv_window_dedup_enabled",
    "capture": f"{_COMPONENTS_OF_RUNNER}.attention_backend_setup.configure_aux_hidden_state_capture",
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
    HookRegistry.register(HOOKED["add_cli_args"], with_our_options, HookType.AROUND)
    HookRegistry.register(HOOKED["from_cli_args"], with_our_settings, HookType.AROUND)
    HookRegistry.register(HOOKED["attention"], causality.layer_attention, HookType.AROUND)
    HookRegistry.register(HOOKED["row_headroom"], run_time.row_headroom, HookType.AROUND)
    HookRegistry.register(HOOKED["forward_options"], run_time.forward_options, HookType.AROUND)
    HookRegistry.register(HOOKED["set_internal_state"], run_time.set_internal_state, HookType.AROUND)
    HookRegistry.register(HOOKED["internal_state"], run_time.internal_state, HookType.AROUND)
    HookRegistry.register(HOOKED["round"], counters.note_rounds, HookType.AROUND)
    HookRegistry.register(HOOKED["counters"], counters.report_rounds, HookType.AROUND)
    HookRegistry.register(HOOKED["norm"], float_layers.normalise_or_activate, HookType.AROUND)
    HookRegistry.register(HOOKED["activation"], float_layers.normalise_or_activate, HookType.AROUND)
    HookRegistry.register(HOOKED["rotation"], float_layers.rotate, HookType.AROUND)
    HookRegistry.register(HOOKED["windows"], recurrent_hooks.windows_may_overlap, HookType.AROUND)
    HookRegistry.register(HOOKED["capture"], recurrent_hooks.capture_layers, HookType.AROUND)
    if multiprocessing.parent_process() is None:
        # Only a server's first process speaks HTTP; the others need not import its server.
        from jetspec_engine.sglang_backend.routes import serve_with_our_routes

        HookRegistry.register(HTTP_SERVER, serve_with_our_routes, HookType.AROUND)
