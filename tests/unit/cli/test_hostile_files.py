"""Whatever a file holds, reading it ends in records or in one of our errors, never in another exception."""

import contextlib
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from jetspec_cli.gating.spec import GateSpec
from jetspec_cli.options import serve_config, server_arguments
from jetspec_cli.prompts import KEYS, Prompt, parse_line, read_prompts
from jetspec_engine.config import TreeConfig
from jetspec_engine.errors import ArtifactError, ConfigError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
PROMPT_ROWS = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), VALUES, max_size=5)
SPEC_KEYS = st.sampled_from(
    ["prompts", "oracles", "dtypes", "repeat", "max_new_tokens", "allow_near_ties", "server", "tree"]
)
TREES = st.dictionaries(
    st.sampled_from(["rule", "width", "budget", "beta", "g0", "keep_spine", "odd"]), VALUES, max_size=4
)


@given(st.binary(max_size=200))
def test_case_30_any_bytes(line):
    with contextlib.suppress(ValueError):
        assert isinstance(parse_line(line), Prompt)


@given(PROMPT_ROWS)
def test_case_30_any_row(row):
    with contextlib.suppress(ValueError):
        assert isinstance(parse_line(json.dumps(row).encode()), Prompt)


@given(content=st.binary(max_size=300))
@settings(max_examples=50)
def test_case_30_any_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("p") / "p.jsonl"
    path.write_bytes(content)
    problem = f"{path}:"
    try:
        assert read_prompts(path)
    except ArtifactError as error:
        problem = error.what
    assert problem.startswith(f"{path}:")
    assert "\n" not in problem


@given(st.dictionaries(SPEC_KEYS, VALUES, max_size=5), TREES)
def test_any_gate_file(values, tree):
    given_values = {"prompts": "p", **values, "tree": values.get("tree", tree)}
    problem = ""
    try:
        spec = GateSpec.from_mapping(given_values, where="g.toml")
        server_arguments(serve_config(spec.server, spec.trees or (TreeConfig(),)))
    except ConfigError as error:
        problem = error.what
    assert "\n" not in problem
