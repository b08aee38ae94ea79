"""Where SGLang 0.5.17 is asked things: facts of its configuration, and our settings on their way through it.

SGLang resolves ``ServerArgs`` once, pickles it to its other processes and makes it read-only; a private attribute
travels along and shows up in ``/server_info``, which is how the launcher proves that the scheduler got our settings.
Knows nothing of what is done with the facts.
"""

import logging
from typing import Any

from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view
from sglang.srt.configs.hybrid_arch import hybrid_gdn_config, mambaish_config
from sglang.srt.configs.model_config import AttentionArch

from jetspec_engine.errors import EngineError
from jetspec_engine.models.layer_kinds import state_bytes
from jetspec_engine.sglang_backend.args import TreeSettings
from jetspec_engine.sglang_backend.command_line import SETTINGS_ATTRIBUTE
from jetspec_engine.sglang_backend.recurrent.limits import GATED_DELTA, RecurrentFacts
from jetspec_engine.sglang_backend.refusals import ServerFacts

BLOCK_ATTRIBUTE = "_jetspec_block"
STATE_BACKEND_OPTIONS = (
    "--linear-attn-backend", "--linear-attn-decode-backend", "--linear-attn-prefill-backend",
    "--linear-attn-verify-backend",
)  # fmt: skip
STATE_OPTIONS = (
    "--enable-linear-replayssm", "--enable-linear-replayssm-spec", "--enable-unified-memory",
    "--enable-page-major-kv-layout", "--enable-mamba-cache-stochastic-rounding",
)  # fmt: skip


def server_facts(server_args: Any, settings: TreeSettings) -> ServerFacts:
    """Gather what decides whether JETSPEC can run.

    Args:
        server_args: SGLang's ``ServerArgs``, while or after it is resolved; not changed. Reads the target's
            configuration file.
        settings: ours.
    """
    view = resolved_view(server_args)
    model = server_args.get_model_config()
    return ServerFacts(
        max_width=settings.max_width,
        device=str(server_args.device),
        attention_backends=tuple(attention_backends_of(view)),
        page_size=view.page_size or 1,
        pp_size=server_args.pp_size,
        disaggregation_mode=view.disaggregation_mode,
        has_dp_attention=bool(view.enable_dp_attention),
        is_mla=model.attention_arch == AttentionArch.MLA,
        recurrent=recurrent_facts(server_args, model),
        has_sliding_window=bool(model.is_hybrid_swa or model.sliding_window_size),
        has_draft_window=server_args.speculative_draft_window_size is not None,
        draft_path=server_args.speculative_draft_model_path or "",
    )


def recurrent_facts(server_args: Any, model: Any) -> RecurrentFacts | None:
    """Gather what decides whether a target's recurrent layers can be verified; None where it has none.

    Args:
        server_args: as for ``server_facts``.
        model: SGLang's ``ModelConfig``.
    """
    config = mambaish_config(model)
    if config is None:
        return None
    kind = GATED_DELTA if hybrid_gdn_config(model) is not None else type(config).__name__
    backends = {option: getattr(server_args, _field(option)) for option in STATE_BACKEND_OPTIONS}
    return RecurrentFacts(
        kind=kind, backends={option: name for option, name in backends.items() if name is not None},
        options=tuple(option for option in STATE_OPTIONS if getattr(server_args, _field(option), False)),
        row_bytes=_row_bytes(config, server_args),
    )  # fmt: skip


def _row_bytes(config: Any, server_args: Any) -> int:
    """Return what the states of one verify row take on a GPU, 0 for a configuration with other names."""
    names = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
    sizes: list[Any] = [getattr(config, name, None) for name in names]
    layers = getattr(config, "linear_layer_ids", ())
    if not all(isinstance(size, int) for size in sizes):
        return 0
    dtype = server_args.mamba_ssm_dtype or getattr(config, "mamba_ssm_dtype", None)
    row = len(layers) * state_bytes(*sizes, itemsize=4 if dtype in (None, "float32") else 2)
    return row // int(server_args.tp_size)


def gpu_bytes(server_args: Any) -> int:
    """Return the memory of one GPU as SGLang sees it, 0 where it does not say."""
    from sglang.srt.utils import get_device_memory_capacity

    return int((get_device_memory_capacity(server_args.device) or 0) * (1 << 20))


def keep_no_prefixes(server_args: Any) -> None:
    """Turn prefix reuse off for a target with recurrent layers, with a word, in place.

    SGLang keeps a state where a block of the text ends and finds it again by where a chain's rounds pass that place; a
    tree's do not pass it alike, so a text would continue from another text's state.
    """
    if not server_args.disable_radix_cache:
        server_args.disable_radix_cache = True
        logging.getLogger("sglang.jetspec").warning(
            "jetspec: prefixes are not reused: the target has recurrent layers (--disable-radix-cache says it at start)"
        )


def share_settings(server_args: Any, settings: TreeSettings) -> None:
    """Attach our settings to SGLang's, as plain data."""
    setattr(server_args, SETTINGS_ATTRIBUTE, settings.to_mapping())


def share_block_size(server_args: Any) -> None:
    """Keep the draft block D + 1 apart from SGLang's number of draft tokens, which then counts verify rows."""
    setattr(server_args, BLOCK_ATTRIBUTE, int(server_args.speculative_num_draft_tokens))


def block_size_of(server_args: Any) -> int:
    """Return the draft block D + 1 of a configuration that ``share_block_size`` was given."""
    return int(getattr(server_args, BLOCK_ATTRIBUTE))


def settings_of(server_args: Any) -> TreeSettings:
    """Return the settings attached to SGLang's configuration.

    Raises:
        EngineError: there are none, so this configuration was not made with our plugin.
    """
    shared = getattr(server_args, SETTINGS_ATTRIBUTE, None)
    if shared is None:
        raise EngineError("sglang: the server's configuration lacks JetSpec's settings, expected the plugin's hook")
    return TreeSettings.from_mapping(shared)


def _field(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")
