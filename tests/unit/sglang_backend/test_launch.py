"""The command line of the child server, the choice of its GPU, and what is made of its last words."""

import argparse
import sys
from pathlib import Path

import pytest

from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.errors import ConfigError, UnavailableError
from jetspec_engine.sglang_backend import launch
from jetspec_engine.sglang_backend.args import add_options, settings_from_namespace


def words_of(**changes):
    return launch.server_words(ServeConfig(**changes), target=Path("/t"), head=Path("/h"), port=4, gpu=2)


def test_R01_the_command_line_says_what_was_configured():
    words = words_of(dtype="float32", page_size=1, max_seq_len=512, max_running=3, extra_args=("--tp-size", "2"))
    for word in (
        "--model-path=/t", "--speculative-algorithm=JETSPEC", "--speculative-draft-model-path=/h", "--port=4",
        "--base-gpu-id=2", "--dtype=float32", "--page-size=1", "--context-length=512", "--max-running-requests=3",
    ):  # fmt: skip
        assert word in words
    assert words[-2:] == ["--tp-size", "2"]


def test_what_was_not_configured_is_left_to_sglang():
    assert not [word for word in words_of() if word.startswith(("--dtype", "--page-size", "--context-length"))]


@pytest.mark.parametrize(
    "tree", [TreeConfig(), TreeConfig(width=1, budget=None), TreeConfig(rule="top2gap", beta=-2.0, budget=64)]
)
def test_the_plugin_reads_back_the_tree(tree):
    config = ServeConfig(tree=tree)
    parser = argparse.ArgumentParser()
    parser.add_argument("--speculative-algorithm")
    add_options(parser)
    namespace, _ = parser.parse_known_args(words_of(tree=tree))
    assert settings_from_namespace(namespace) == launch.settings_of(config)
    assert launch.settings_of(config).tree == tree


@pytest.mark.parametrize("word", ["--model-path", "--port=1", "--speculative-algorithm=EAGLE", "--host"])
def test_an_option_of_ours_after_the_dashes_is_refused(word):
    with pytest.raises(ConfigError, match="which jetspec sets itself"):
        words_of(extra_args=(word,))


def test_a_scripted_drafter_is_refused():
    with pytest.raises(ConfigError, match="drafter: 'right'"):
        words_of(drafter="right")


@pytest.mark.parametrize(
    ("device", "extra", "free", "gpu"),
    [
        ("auto", (), [5, 9, 7], 1),  # the emptiest
        ("cuda", (), [5, 5], 0),
        ("cuda:0", (), [1, 9], 0),
        ("auto", ("--tp-size", "2"), [1, 9], 0),
        ("cuda:1", ("--tp=2",), [1, 1, 1], 1),
    ],
)
def test_R21_the_gpu_is_chosen_among_the_visible(device, extra, free, gpu):
    assert launch.choose_gpu(ServeConfig(device=device, extra_args=extra), free) == gpu


@pytest.mark.parametrize(("device", "extra"), [("cuda:2", ()), ("auto", ("--tp-size=3",)), ("cuda:1", ("--tp", "2"))])
def test_R21_more_gpus_than_visible_are_refused(device, extra):
    with pytest.raises(UnavailableError, match="2 visible"):
        launch.choose_gpu(ServeConfig(device=device, extra_args=extra), [1, 1])


@pytest.mark.parametrize("config", [{"device": "cpu"}, {"device": "cuda:x"}, {"extra_args": ("--tp-size",)}])
def test_a_device_that_cannot_be_is_refused(config):
    with pytest.raises(ConfigError):
        launch.choose_gpu(ServeConfig(**config), [1])


def test_the_probe_returns_what_it_is_told():
    assert launch.probe_free_memory((sys.executable, "-c", "print('noise'); print('[3, 4]')")) == [3, 4]


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("print('[]')", "no GPU is visible"),
        ("raise RuntimeError('driver too old')", "RuntimeError: driver too old"),
        ("import sys; sys.exit(3)", "it said nothing"),
    ],
)
def test_a_probe_that_finds_nothing_is_cannot_run_here(script, fact):
    with pytest.raises(UnavailableError, match=fact):
        launch.probe_free_memory((sys.executable, "-c", script))


def test_a_probe_that_cannot_start_is_cannot_run_here():
    with pytest.raises(UnavailableError, match="cannot be asked"):
        launch.probe_free_memory(("no-such-program",))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "it said nothing"),
        (["", "  \n"], "it said nothing"),
        (["loading", "bye\n"], "bye"),
        (["Traceback", "ValueError: first", "torch.OutOfMemoryError: CUDA out of memory", "Killing all"],
         "torch.OutOfMemoryError: CUDA out of memory"),
        (["jetspec_engine.errors.ConfigError: --pp-size: 2, JETSPEC needs 1", "  at exit"],
         "jetspec_engine.errors.ConfigError: --pp-size: 2, JETSPEC needs 1"),
    ],
)  # fmt: skip
def test_the_reason_is_the_last_exception(lines, reason):
    assert launch.why_it_ended(lines) == reason
