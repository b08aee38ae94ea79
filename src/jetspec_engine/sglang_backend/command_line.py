"""Our options on SGLang's command line, and where the settings read from them are found by the rest of the plugin.

Knows nothing of what the settings do. Imports neither sglang nor torch.
"""

import argparse
import contextvars
from collections.abc import Callable
from typing import Any

from jetspec_engine.sglang_backend.args import TreeSettings, add_options, settings_from_namespace

# The attribute of SGLang's arguments under which the settings travel to its processes.
SETTINGS_ATTRIBUTE = "_jetspec"
_settings: contextvars.ContextVar[TreeSettings | None] = contextvars.ContextVar("jetspec_settings", default=None)


def with_our_options(original: Callable[[argparse.ArgumentParser], None], parser: argparse.ArgumentParser) -> None:
    """Add SGLang's options and ours (around ``ServerArgs.add_cli_args``)."""
    original(parser)
    add_options(parser)


def with_our_settings(original: Callable[..., Any], cls: type, namespace: argparse.Namespace) -> Any:
    """Read our options while SGLang resolves its own (around ``ServerArgs.from_cli_args``)."""
    token = _settings.set(settings_from_namespace(namespace))
    try:
        return original(cls, namespace)
    finally:
        _settings.reset(token)


def settings_being_read() -> TreeSettings:
    """Return the settings of the command line that is being read; the defaults where SGLang is used without one."""
    return _settings.get() or TreeSettings()
