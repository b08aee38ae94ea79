"""Where SGLang 0.5.17 is asked things: facts of its configuration, and our settings on their way through it.

SGLang resolves ``ServerArgs`` once, pickles it to its other processes and makes it read-only; a private attribute
travels along and shows up in ``/server_info``, which is how the launcher proves that the scheduler got our settings.
Knows nothing of what is done with the facts.
"""

from typing import Any

from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.configs.model_config import AttentionArch

from jetspec_engine.errors import EngineError
from jetspec_engine.sglang_backend.args import TreeSettings
from jetspec_engine.sglang_backend.command_line import SETTINGS_ATTRIBUTE
from jetspec_engine.sglang_backend.refusals import ServerFacts

BLOCK_ATTRIBUTE = "_jetspec_block"


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
        width=settings.tree.width,
        max_width=settings.max_width,
        device=str(server_args.device),
        attention_backends=tuple(attention_backends_of(view)),
        page_size=view.page_size or 1,
        pp_size=server_args.pp_size,
        disaggregation_mode=view.disaggregation_mode,
        has_dp_attention=bool(view.enable_dp_attention),
        is_mla=model.attention_arch == AttentionArch.MLA,
        is_recurrent=mambaish_config(model) is not None,
        has_sliding_window=bool(model.is_hybrid_swa or model.sliding_window_size),
        has_draft_window=server_args.speculative_draft_window_size is not None,
        draft_path=server_args.speculative_draft_model_path or "",
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
