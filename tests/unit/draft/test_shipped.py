"""Heads inside the package."""

from jetspec_engine.draft.checkpoint import load_head
from jetspec_engine.draft.shipped import shipped_head_folder


def test_a_target_without_a_shipped_head_has_none() -> None:
    assert shipped_head_folder("no-such-target") is None


def test_the_demo_targets_head_is_whole_where_it_is_shipped() -> None:
    folder = shipped_head_folder("smollm2-135m")
    if folder is not None:
        head = load_head(folder)
        assert head.config.is_causal
        assert (head.config.vocab_size, head.config.hidden_size, head.config.num_target_layers) == (49152, 576, 30)
