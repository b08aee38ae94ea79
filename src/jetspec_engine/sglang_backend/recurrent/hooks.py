"""Two of SGLang's functions, hooked for hybrid targets: where drafts keep their windows, and whose layers are captured.

Knows neither trees nor states; imports sglang when it is called.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jetspec_engine.sglang_backend.command_line import SETTINGS_ATTRIBUTE


def windows_may_overlap(original: Callable[..., bool], *given: Any, **named: Any) -> bool:
    """Say whether drafts' convolution windows share memory (around ``conv_window_dedup_enabled``).

    SGLang lets each window overlap the one before it unless drafts are a tree by its own measure, top-k above 1. Ours
    are a tree with top-k 1: a sibling would write into its neighbour's window, and a commit would take the wrong one.
    """
    from sglang.srt.runtime_context import get_server_args

    settings = getattr(get_server_args(), SETTINGS_ATTRIBUTE, None)
    return original(*given, **named) and (settings is None or settings["max_width"] == 1)


def capture_layers(original: Callable[..., None], *, model: Any, **options: Any) -> None:
    """Have a target hand out hidden states (around ``configure_aux_hidden_state_capture``).

    SGLang's text-only Qwen3.5 classes hand out what their body captures and lack the method that asks it to.
    """
    body: Any = getattr(model, "model", None)
    wanted = "set_dflash_layers_to_capture"
    if not hasattr(model, wanted) and hasattr(body, wanted) and hasattr(model, "capture_aux_hidden_states"):

        def ask_the_body(layers: Sequence[int]) -> None:
            model.capture_aux_hidden_states = True
            body.set_dflash_layers_to_capture([layer + 1 for layer in layers])

        setattr(model, wanted, ask_the_body)
    original(model=model, **options)
