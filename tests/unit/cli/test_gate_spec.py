"""Gate files and flags: precedence, grids, and what is refused."""

from pathlib import Path

import pytest

from jetspec_cli.gating.spec import GateSpec, load_spec
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import ConfigError

GATES = Path(__file__).parents[3] / "gates"


def load(tmp_path, text: str, **flags) -> GateSpec:
    path = tmp_path / "g.toml"
    path.write_text(text)
    return load_spec(path, flags)


def test_flags_go_before_the_file_and_the_file_before_defaults(tmp_path):
    text = 'prompts = "p.jsonl"\nrepeat = 2\n[tree]\nwidth = [4, 7]\nbudget = 64\n[server]\ntarget = "t"\nhead = "h"\n'
    spec = load(tmp_path, text, tree={"width": [2]}, server={"head": "other"}, max_new_tokens=9)
    assert spec.trees == (TreeConfig(width=2, budget=64),)
    assert spec.server == {"target": "t", "head": "other"}
    assert (spec.repeat, spec.max_new_tokens, spec.oracles) == (2, 9, ("linear",))


def test_a_files_prompts_are_relative_to_it_and_flags_are_not(tmp_path):
    assert load(tmp_path, 'prompts = "p.jsonl"').prompts == tmp_path / "p.jsonl"
    assert load(tmp_path, 'prompts = "p.jsonl"', prompts="q.jsonl").prompts == Path("q.jsonl")


def test_several_targets_make_a_server_each_and_a_flag_names_the_only_one(tmp_path):
    text = 'prompts = "p"\ntargets = ["a", "b"]\n[server]\ndrafter = "recall"\n'
    assert load(tmp_path, text).targets == ("a", "b")
    alone = load(tmp_path, text, server={"target": "c"})
    assert (alone.targets, alone.server) == ((), {"drafter": "recall", "target": "c"})
    with pytest.raises(ConfigError, match="targets: a, a, expected different names"):
        load(tmp_path, text.replace('"b"', '"a"'))


def test_R02_the_grid_is_the_product_of_its_lists(tmp_path):
    text = 'prompts = "p"\n[tree]\nwidth = [4, 7]\nbudget = [64, 128]\n'
    cells = [(tree.width, tree.budget) for tree in load(tmp_path, text).trees]
    assert cells == [(4, 64), (4, 128), (7, 64), (7, 128)]


def test_R25_a_width_without_a_budget_means_the_rows_of_the_linear_path(tmp_path):
    assert load(tmp_path, 'prompts = "p"\n[tree]\nwidth = 4\n').trees == (TreeConfig(width=4, budget=None),)
    assert load(tmp_path, 'prompts = "p"\n[tree]\nbudget = "chain"\n').trees == (TreeConfig(budget=None),)


def test_R10_beta_and_g0_select_top2gap(tmp_path):
    trees = load(tmp_path, 'prompts = "p"\n[tree]\nbeta = [0.5, 1]\n').trees
    assert [(tree.rule, tree.beta) for tree in trees] == [("top2gap", 0.5), ("top2gap", 1)]


@pytest.mark.parametrize("rule", ['"best_first"', '["top2gap", "accum_logp"]'])
def test_R10_beta_with_another_rule_is_refused(tmp_path, rule):
    with pytest.raises(ConfigError, match="beta and g0 belong to the rule top2gap"):
        load(tmp_path, f'prompts = "p"\n[tree]\nrule = {rule}\nbeta = 1.0\n')


REFUSED = {
    "unknown key": ('prompts = "p"\noracle = ["linear"]', "unknown key 'oracle'", "did you mean oracles?"),
    "unknown tree key": ('prompts = "p"\n[tree]\nwidht = 4', "tree: unknown key 'widht'", "did you mean width?"),
    "unknown server key": (
        'prompts = "p"\n[server]\ntarge = "t"',
        "server: unknown key 'targe'",
        "did you mean target?",
    ),
    "unknown oracle": ('prompts = "p"\noracles = ["linaer"]', "oracles: 'linaer'", "did you mean linear?"),
    "unknown dtype": ('prompts = "p"\ndtypes = ["bf16"]', "dtypes: 'bf16'", ""),
    "an oracle twice": ('prompts = "p"\noracles = ["greedy", "greedy"]', "oracles: greedy, greedy", ""),
    "no oracle": ('prompts = "p"\noracles = []', "oracles: empty", ""),
    "oracles of numbers": ('prompts = "p"\noracles = [1]', "expected a list of names", ""),
    "repeat of zero": ('prompts = "p"\nrepeat = 0', "repeat: 0", ""),
    "near ties as text": ('prompts = "p"\nallow_near_ties = "no"', "allow_near_ties: 'no'", ""),
    "width of zero": ('prompts = "p"\n[tree]\nwidth = [0]', "tree.width: 0", ""),
    "empty axis": ('prompts = "p"\n[tree]\nwidth = []', "tree.width: an empty list", ""),
    "tree as a list": ('prompts = "p"\ntree = [1]', "tree: [1], expected a table", ""),
    "server as text": ('prompts = "p"\nserver = "x"', "server: 'x', expected a table", ""),
    "no prompts": ("repeat = 1", "no prompts file given", "--prompts"),
    "prompts of a number": ("prompts = 5", "prompts: 5, expected a name or a path", ""),
    "a path no system can hold": ('prompts = "a\\u0000"', "expected a name or a path", ""),
    "not TOML": ("prompts = ", "not TOML", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_gate_files_are_refused_in_one_line(tmp_path, name):
    text, what, hint = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert "\n" not in caught.value.what


def test_a_missing_gate_file_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_spec(tmp_path / "none.toml", {})


def test_the_default_gate_is_the_default_tree():
    spec = load_spec(GATES / "default.toml", {})
    assert spec.trees == (TreeConfig(),)
    assert spec.oracles == ("linear",)


def test_the_full_gate_is_the_grid_of_the_first_milestone():
    spec = load_spec(GATES / "full.toml", {})
    assert {(tree.width, tree.budget) for tree in spec.trees} == {
        (width, budget) for width in (1, 2, 4, 7, 8) for budget in (16, 32, 64, 128)
    }
    assert spec.oracles == ("linear", "greedy")
    assert spec.dtypes == ("float32", "bfloat16")


@pytest.mark.parametrize("path", sorted(GATES.glob("*.toml")), ids=lambda path: path.name)
def test_R28_every_gate_file_of_the_repository_loads(path):
    assert load_spec(path, {}).prompts.suffix == ".jsonl"


HOSTILE = {
    "nesting without end": (b"a = " + b"[" * 30_000, "not TOML: nested too deeply"),
    "tables without end": (b"a = " + b"{b=" * 20_000, "not TOML: nested too deeply"),
    "an integer of thousands of digits": (b"repeat = " + b"9" * 5000, "not TOML: Exceeds the limit"),
    "a key of thousands of dots": (b"a" + b".a" * 100_000 + b" = 1", "expected at most 65536 bytes"),
    "not UTF-8": (b'prompts = "\xe9"', "byte 12 is 0xe9, expected UTF-8"),
    "no TOML": (b"prompts = [", "not TOML: Invalid value"),
    "an unknown key": (b"promts = 1", "top level: unknown key 'promts'"),
    "a wrong type": (b'repeat = "x"', r"repeat: 'x', expected an integer in \[1, 1000\]"),
    "a list of tables": (b"[[tree]]\nwidth = 2", r"tree: \[{'width': 2}\], expected a table"),
    "a server that is none": (b"server = 3", "server: 3, expected a table"),
    "a grid for years": (
        f"[tree]\nwidth = {list(range(1, 60))}\nbudget = {list(range(1, 900))}".encode(),
        "tree: 53041 combinations, expected at most 10000",
    ),
}


@pytest.mark.parametrize(("content", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_bad_gate_file_is_refused_by_its_name(tmp_path, content, reason):
    path = tmp_path / "g.toml"
    path.write_bytes(content)
    # Whatever the flags say beside it: a file that is wrong is wrong.
    with pytest.raises(ConfigError, match=rf"^gate file: {path}: {reason}") as caught:
        load_spec(path, {"prompts": "p", "repeat": 1})
    assert "\n" not in caught.value.what


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "g.toml"
    path.write_bytes(b'\xef\xbb\xbfprompts = "p"\r\nrepeat = 2\r\n')
    assert load_spec(path, {}).repeat == 2
