"""Configuration records: ranges, unknown keys, budgets."""

import math

import pytest

from jetspec_engine.config import LINEAR, PLAIN, ServeConfig, TreeConfig
from jetspec_engine.errors import ConfigError


@pytest.mark.parametrize("beta", [math.nan, math.inf, -math.inf, 10**400, "1", True, None])
def test_R39_a_beta_that_is_no_finite_number_is_refused(beta):
    with pytest.raises(ConfigError, match=r"tree\.beta"):
        TreeConfig(beta=beta)


@pytest.mark.parametrize(
    ("width", "budget", "nodes"), [(1, None, 16), (1, 1, 1), (1, 8, 8), (1, 64, 16), (8, 64, 64), (8, None, 16)]
)
def test_case_17_budgets_resolve_as_documented(width, budget, nodes):
    assert TreeConfig(width=width, budget=budget).resolve_budget(15) == nodes


def test_R25_the_oracles_are_the_chain_and_the_root():
    assert LINEAR.resolve_budget(15) == 16
    assert PLAIN.resolve_budget(15) == 1


def test_an_unknown_key_names_the_nearest_one():
    with pytest.raises(ConfigError, match="unknown key 'widht'") as caught:
        TreeConfig.from_mapping({"widht": 8})
    assert caught.value.hint == "did you mean width?"


@pytest.mark.parametrize("given", [{"beta": 2.0}, {"g0": 0.5}, {"beta": 2.0, "g0": 0.5, "width": 4}])
def test_R10_beta_or_g0_without_a_rule_select_top2gap(given):
    assert TreeConfig.from_mapping(given) == TreeConfig(rule="top2gap", **given)
    # A whole tree names its rule, which then has numbers that it does not use.
    assert TreeConfig.from_mapping({**given, "rule": "accum_logp"}).rule == "accum_logp"
    assert TreeConfig.from_mapping({}).rule == "best_first"


def test_R17_a_tree_beyond_the_started_maximum_is_refused():
    config = ServeConfig(max_width=4, max_budget=16, tree=TreeConfig(width=4, budget=16))
    with pytest.raises(ConfigError, match="at most 4"):
        config.check_tree(TreeConfig(width=5))
    with pytest.raises(ConfigError, match="at most 16"):
        config.check_tree(TreeConfig(width=4, budget=17))


def test_R11_width_1_takes_any_budget():
    ServeConfig(max_budget=16).check_tree(TreeConfig(width=1, budget=1024))


@pytest.mark.parametrize("name", ["target", "head", "host"])
@pytest.mark.parametrize("value", [5, None, ["a"], "nul\0byte"])
def test_names_are_text(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}: .*expected a name or a path"):
        ServeConfig(**{name: value})  # type: ignore[arg-type]
