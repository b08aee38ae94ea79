"""An output that is an input, or another output: refused before anything runs, and the file is left as it is."""

import pytest

from jetspec_cli import options
from jetspec_engine.errors import ConfigError

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "words",
    [
        ("gate", "--out"), ("gate", "--junit"), ("gate", "--summary"), ("bench", "--out"), ("profile", "--out"),
        ("profile", "--trace"),
    ],
)  # fmt: skip
def test_the_prompts_are_never_overwritten(jetspec, prompts, words):
    command, flag = words
    before = prompts.read_bytes()
    result = jetspec(command, "--prompts", prompts, "--url", NOWHERE, flag, prompts)
    assert result.code == 2
    assert f"{flag}: {prompts}: the file of --prompts" in result.err
    assert prompts.read_bytes() == before


def test_the_rows_of_a_bench_are_not_its_prompts(jetspec, prompts):
    prompts = prompts.rename(prompts.with_name("b.requests.ndjson"))
    result = jetspec("bench", "--prompts", prompts, "--url", NOWHERE, "--out", prompts.with_name("b.json"))
    assert result.code == 2
    assert f"--out: {prompts}: the file of --prompts" in result.err


def test_a_gate_file_is_never_overwritten(jetspec, prompts):
    file = prompts.with_name("gate.toml")
    file.write_text(f'prompts = "{prompts.name}"\n')
    result = jetspec("gate", "--gate", file, "--url", NOWHERE, "--out", file)
    assert result.code == 2
    assert "the file of --gate too" in result.err


@pytest.mark.parametrize("pair", [("--out", "--junit"), ("--junit", "--summary")])
def test_two_outputs_of_one_name_are_refused(jetspec, prompts, pair):
    words = [word for flag in pair for word in (flag, "same")]
    result = jetspec("gate", "--prompts", prompts, "--url", NOWHERE, *words)
    assert result.code == 2
    assert f"{pair[1]}: same: the file of {pair[0]} too" in result.err


def test_links_are_the_file_they_lead_to_and_devices_are_none(tmp_path, prompts):
    for name, make in (("soft", "symlink_to"), ("hard", "hardlink_to")):
        link = tmp_path / name
        getattr(link, make)(prompts)
        with pytest.raises(ConfigError, match="the file of --prompts too"):
            options.separate_files({"--out": link}, {"--prompts": prompts})
    device = prompts.__class__("/dev/null")
    options.separate_files({"--out": device, "--junit": device}, {"--prompts": prompts})


def test_nothing_is_kept_beside_a_device(jetspec, prompts, monkeypatch):
    asked = []
    monkeypatch.setattr("jetspec_cli.options.writable_file", lambda flag, path: asked.append(path))
    jetspec("bench", "--prompts", prompts, "--url", NOWHERE, "--out", "/dev/null")
    assert [str(path) for path in asked if path is not None] == ["/dev/null"]
