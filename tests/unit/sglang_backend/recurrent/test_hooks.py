"""The two hooks of hybrid targets: windows of drafts apart for trees, hidden states of text-only classes."""

import sys
import types

import pytest

from jetspec_engine.sglang_backend.recurrent.hooks import capture_layers, windows_may_overlap


@pytest.mark.parametrize(
    ("settings", "stock", "expected"),
    [
        (None, True, True),
        ({"max_width": 1}, True, True),
        ({"max_width": 8}, True, False),
        ({"max_width": 1}, False, False),
    ],
)
def test_windows_of_a_trees_drafts_never_overlap(monkeypatch, settings, stock, expected):
    args = types.SimpleNamespace(**({} if settings is None else {"_jetspec": settings}))
    context = types.ModuleType("sglang.srt.runtime_context")
    context.get_server_args = lambda: args
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    assert windows_may_overlap(lambda *_: stock, 1, 2) is expected


class Body:
    captured = None

    def set_dflash_layers_to_capture(self, layers):
        self.captured = layers


class TextOnly:
    """As SGLang's Qwen3.5 classes without a vision tower."""

    capture_aux_hidden_states = False

    def __init__(self):
        self.model = Body()


class Whole(TextOnly):
    def set_dflash_layers_to_capture(self, layers):
        self.asked = layers


def stock(*, model, dflash_target_layer_ids):
    model.set_dflash_layers_to_capture(dflash_target_layer_ids)


def test_a_text_only_class_hands_out_the_states_after_the_layers():
    model = TextOnly()
    capture_layers(stock, model=model, dflash_target_layer_ids=[1, 5])
    assert model.model.captured == [2, 6]
    assert model.capture_aux_hidden_states


def test_a_class_that_has_the_method_keeps_it():
    model = Whole()
    capture_layers(stock, model=model, dflash_target_layer_ids=[1])
    assert model.asked == [1]
    assert model.model.captured is None
