"""Our options on SGLang's command line and the JSON beside them."""

import argparse
import json

import pytest

from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import ConfigError
from jetspec_engine.sglang_backend.args import TreeSettings, add_options, option_words, settings_from_namespace


def read(*words, algorithm="JETSPEC"):
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--speculative-algorithm")
    add_options(parser)
    return settings_from_namespace(parser.parse_args(["--speculative-algorithm", algorithm, *words]))


def test_defaults_are_the_engines():
    assert read() == TreeSettings(tree=TreeConfig(), max_width=8, budgets=(16,))


@pytest.mark.parametrize(
    ("words", "tree"),
    [
        (["--speculative-dflash-tree-width=4"], TreeConfig(width=4, budget=None)),  # R25
        (["--speculative-dflash-tree-width=4", "--speculative-dflash-tree-budget=64"], TreeConfig(width=4, budget=64)),
        (["--speculative-dflash-tree-budget=chain"], TreeConfig(budget=None)),
        (["--speculative-dflash-tree-beta=-2"], TreeConfig(rule="top2gap", beta=-2.0)),
        (["--speculative-dflash-tree-g0=0.5"], TreeConfig(rule="top2gap", g0=0.5)),
        (["--speculative-dflash-tree-rule=accum_logp"], TreeConfig(rule="accum_logp")),
        (["--speculative-dflash-tree-keep-spine=true"], TreeConfig(keep_spine=True)),
    ],
)
def test_R15_options_become_the_tree(words, tree):
    assert read(*words).tree == tree


def test_R15_the_json_means_the_same_as_the_options():
    document = {
        "method": "jetspec", "tree_width": 7, "tree_budget": 64, "tree_rule": "top2gap", "tree_beta": 2, "tree_g0": 0.5,
        "tree_keep_spine": True, "tree_max_width": 9, "tree_budgets": [128, 16],
    }  # fmt: skip
    settings = read("--speculative-config", json.dumps(document))
    assert settings == TreeSettings(
        tree=TreeConfig(width=7, budget=64, rule="top2gap", beta=2, g0=0.5, keep_spine=True),
        max_width=9,
        budgets=(16, 64, 128),
    )
    assert read(*option_words(settings)) == settings


def test_an_option_beats_the_json():
    settings = read("--speculative-config", '{"tree_width": 7, "tree_budget": 64}', "--speculative-dflash-tree-width=2")
    assert (settings.tree.width, settings.tree.budget) == (2, 64)


@pytest.mark.parametrize(
    "settings",
    [
        TreeSettings(),
        TreeSettings(tree=TreeConfig(width=1, budget=None), max_width=1, budgets=()),
        TreeSettings(tree=TreeConfig(rule="top2gap", beta=-1e-9, g0=1e6, keep_spine=True), budgets=(16, 1024)),
    ],
)
def test_words_and_mappings_are_read_back(settings):
    assert read(*option_words(settings)) == settings
    assert TreeSettings.from_mapping(json.loads(json.dumps(settings.to_mapping()))) == settings


BAD_JSON = {
    "": "not JSON",
    "{": "not JSON",
    "[1]": "list, expected a JSON object",
    "null": "NoneType",
    '{"tree_widht": 4}': "unknown key 'tree_widht'",
    '{"model": "x"}': "unknown key 'model'",
    '{"tree_width": 4, "tree_width": 4}': "given twice",
    '{"method": "eagle"}': "method: 'eagle'",
    '{"method": 1}': "method: 1",
    '{"tree_width": "4"}': "width: '4'",
    '{"tree_width": true}': "width: True",
    '{"tree_width": 0}': "width: 0",
    '{"tree_width": 65}': "width: 65",
    '{"tree_budget": 0}': "budget: 0",
    '{"tree_budget": "all"}': "budget: 'all'",
    '{"tree_beta": NaN}': "beta: nan",
    '{"tree_beta": 1e999}': "beta: inf",
    '{"tree_rule": "top3gap"}': "rule: 'top3gap'",
    '{"tree_beta": 1, "tree_rule": "best_first"}': "belong to the rule top2gap",
    '{"tree_keep_spine": "yes"}': "keep_spine: 'yes'",
    '{"tree_budgets": 16}': "tree_budgets: 16",
    '{"tree_budgets": ["16"]}': "tree_budgets: '16'",
    '{"tree_width": 9, "tree_max_width": 8}': "tree_width: 9",
    '{"tree_max_width": 0}': "tree_max_width: 0",
}


@pytest.mark.parametrize(("text", "fact"), BAD_JSON.items())
def test_R15_a_bad_json_is_one_line(text, fact):
    with pytest.raises(ConfigError) as caught:
        read("--speculative-config", text)
    assert fact in caught.value.what
    assert "\n" not in caught.value.what


def test_R15_an_unknown_key_gets_the_allowed_list():
    with pytest.raises(ConfigError) as caught:
        read("--speculative-config", '{"tree_widht": 4}')
    assert "did you mean tree_width?" in caught.value.hint
    for key in ("method", "tree_width", "tree_budget", "tree_rule", "tree_beta", "tree_g0", "tree_max_width"):
        assert key in caught.value.hint


@pytest.mark.parametrize("algorithm", ["EAGLE", "DFLASH", "NGRAM"])
@pytest.mark.parametrize("text", ['{"num_steps": 3}', "not even JSON"])
def test_R15_another_algorithms_json_is_untouched(algorithm, text):
    assert read("--speculative-config", text, algorithm=algorithm) is None


def test_tree_options_for_another_algorithm_are_refused():
    with pytest.raises(ConfigError, match=r"--speculative-dflash-tree-beta: the speculative algorithm is EAGLE"):
        read("--speculative-dflash-tree-beta=1", algorithm="EAGLE")


@pytest.mark.parametrize(
    "word",
    ["tree-width=x", "tree-budget=", "tree-beta=nan", "tree-g0=inf", "tree-keep-spine=1", "tree-budgets=16;64"],
)
def test_a_bad_option_names_itself(word):
    with pytest.raises(ConfigError) as caught:
        read(f"--speculative-dflash-{word}")
    assert caught.value.what.startswith(f"--speculative-dflash-{word.partition('=')[0]}: ")
