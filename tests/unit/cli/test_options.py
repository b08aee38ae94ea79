"""Options: lists, the rule that beta selects, and the round trip from a configuration to flags and back."""

import re

import pytest

from jetspec_cli import app, options
from jetspec_engine.config import ServeConfig, TreeConfig
from jetspec_engine.errors import ConfigError


def test_lists():
    assert options.parse_integers("--tree-width", "4, 7") == [4, 7]
    assert options.parse_budgets("--budget", "16,chain") == [16, "chain"]
    assert options.parse_numbers("--beta", "0.5,1") == [0.5, 1.0]
    assert options.parse_integers("--tree-width", None) is None


@pytest.mark.parametrize("value", ["four", "4,", "", "4;7", "4.5"])
def test_a_bad_list_names_the_flag_and_the_value(value):
    with pytest.raises(ConfigError, match=re.escape(f"--tree-width: {value!r}")):
        options.parse_integers("--tree-width", value)


def test_one_budget_is_one(capsys):
    assert options.parse_budget("--budget", "chain") == "chain"
    with pytest.raises(ConfigError, match="expected one integer or chain"):
        options.parse_budget("--budget", "16,32")


def test_R25_an_unset_budget_at_any_width():
    assert options.tree_from({"width": 4}) == TreeConfig(width=4, budget=None)
    assert options.tree_from({"width": 1}) == TreeConfig(width=1, budget=None)
    assert options.tree_from({"budget": "chain"}) == TreeConfig(budget=None)
    assert options.tree_from({}) == TreeConfig()


def test_R10_beta_and_g0_select_top2gap_and_refuse_another_rule():
    assert options.tree_from({"beta": 2.0}).rule == "top2gap"
    assert options.tree_from({"g0": 2.0, "rule": "top2gap"}).g0 == 2.0
    for rule in ("best_first", "accum_logp"):
        for name in ("beta", "g0"):
            with pytest.raises(ConfigError, match=f"the rule given is {rule}"):
                options.tree_from({name: 2.0, "rule": rule})


def test_an_unknown_rule_is_named_as_such_even_beside_beta():
    with pytest.raises(ConfigError, match=re.escape("tree.rule: 'top2gpa'")):
        options.tree_from({"beta": 2.0, "rule": "top2gpa"})


def test_room_grows_with_the_trees_and_never_below_the_default():
    config = options.serve_config({}, [TreeConfig(width=4, budget=8), TreeConfig(width=16, budget=256)])
    assert (config.max_width, config.max_budget) == (16, 256)
    small = options.serve_config({}, [TreeConfig(width=2, budget=8)])
    assert (small.max_width, small.max_budget) == (ServeConfig.max_width, ServeConfig.max_budget)


def test_the_linear_path_needs_no_room_for_a_budget_it_ignores():
    config = options.serve_config({}, [TreeConfig(width=1, budget=1024)])
    assert config.max_budget == ServeConfig.max_budget


def test_a_stated_maximum_is_kept():
    with pytest.raises(ConfigError, match="at most 4"):
        options.serve_config({"max_width": 4}, [TreeConfig()])


@pytest.mark.parametrize(
    "tree",
    [
        TreeConfig(),
        TreeConfig(width=1, budget=None),
        TreeConfig(rule="top2gap", beta=-0.1, g0=1e-3, width=16, budget=300),
        TreeConfig(rule="accum_logp", keep_spine=True),
    ],
)
def test_a_configuration_survives_the_way_through_the_command_line(tree, monkeypatch):
    settings = {
        "engine": "embedded", "target": "some/target", "head": "h", "drafter": "right", "device": "cpu", "page_size": 1,
        "max_seq_len": 99, "max_running": 2, "num_threads": 3, "dtype": "float32", "cache_dir": "/c",
    }  # fmt: skip
    config = options.serve_config(settings, [tree])
    seen = []
    monkeypatch.setattr("jetspec_cli.serving.host.host", lambda config, **_: seen.append(config))
    monkeypatch.setattr("jetspec_cli.environment.cache_dir", lambda: "/c")
    monkeypatch.delenv("JETSPEC_API_KEY", raising=False)
    assert app.run(["serve", *options.server_arguments(config)]) == 0
    assert seen == [config]


def test_options_after_two_dashes_are_passed_on(monkeypatch):
    seen = []
    monkeypatch.setattr("jetspec_cli.serving.host.host", lambda config, **_: seen.append(config.extra_args))
    assert app.run(["serve", "--engine", "sglang", "--", "--tp-size", "2", "--format", "json"]) == 0
    assert seen == [("--tp-size", "2", "--format", "json")]
