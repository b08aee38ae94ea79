"""Stands in for torchvision where it is missing: SGLang imports it for pictures, and its wheels need CUDA's torch.

Every name is there and nothing works.
"""

import sys
import types

__version__ = "0"  # too old for whoever asks before using it


class Nothing:
    """Answers to any attribute with itself, and fails when called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_, **__):
        raise NotImplementedError("torchvision stand-in")


class StandIn(types.ModuleType):
    """A module with every name in it."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


for part in ("io", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional"):
    sys.modules[f"{__name__}.{part}"] = StandIn(f"{__name__}.{part}")
