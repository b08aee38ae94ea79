"""The gate's files: JSON, JUnit, Markdown, and what they keep when things go wrong."""

import json
import math
import xml.etree.ElementTree as ET

import pytest

from jetspec_cli.reporting import json_doc, junit, markdown
from support.mock_server import Script, mock_server


def mixed(call, tokens):
    """A tree that is wrong on the chat prompt only."""
    if call.is_tree and bytes(call.prompt_ids).startswith(b"<user>"):
        tokens[7] += 1
    return tokens


@pytest.fixture
def files(jetspec, prompts, tmp_path):
    """One run with a mismatch, and the files it wrote."""
    flags = ["--tree-width", "4", "--budget", "16,64", "--out", tmp_path / "o.json"]
    flags += ["--junit", tmp_path / "j.xml", "--summary", tmp_path / "s.md"]
    with mock_server(Script(change=mixed)) as (url, _):
        assert jetspec("gate", "--prompts", prompts, "--url", url, *flags).code == 1
    return tmp_path


def test_the_document_says_what_ran_where_and_how(files):
    document = json.loads((files / "o.json").read_text())
    assert (document["schema_version"], document["kind"], document["exit_code"]) == (1, "gate", 1)
    assert document["command"][:2] == ["jetspec", "gate"] or document["command"][0] == "jetspec"
    assert [tree["budget"] for tree in document["configuration"]["trees"]] == [16, 64]
    assert document["environment"]["versions"]["httpx"]
    assert document["servers"][0]["info"]["target"] == "mock-target"
    assert document["started_at"].endswith("+00:00")
    assert len(document["runs"]) == 4 + 8 + 1


def test_R05_junit_has_a_suite_a_cell_and_a_case_a_prompt(files):
    root = ET.parse(files / "j.xml").getroot()
    names = [suite.get("name") for suite in root]
    assert names[:2] == ["bfloat16 W4 B16 against linear", "bfloat16 W4 B64 against linear"]
    assert [case.get("name") for case in root[0]] == ["text-1", "text-2", "chat-1", "ids-1"]
    (failure,) = root[0].iter("failure")
    assert "token 7: oracle" in failure.text
    # Two comparisons, and the argmax check of the same tokens once.
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("10", "3", "0")


def test_R05_a_near_tie_fails_in_junit_unless_it_is_allowed(jetspec, prompts, tmp_path):
    found = []
    with mock_server(Script(change=mixed, gap=0.25)) as (url, _):
        for allowed in ((), ("--allow-near-ties",)):
            jetspec("gate", "--prompts", prompts, "--url", url, "--junit", tmp_path / "j.xml", *allowed)
            root = ET.parse(tmp_path / "j.xml").getroot()
            found.append((root.get("failures"), root.get("errors"), len(list(root.iter("system-out")))))
    # The comparison, and the argmax check of the same tokens.
    assert found == [("2", "0", 0), ("0", "0", 2)]


def test_R31_summaries_append(files, jetspec, prompts):
    first = (files / "s.md").read_text()
    with mock_server() as (url, _):
        jetspec("gate", "--prompts", prompts, "--url", url, "--summary", files / "s.md")
    both = (files / "s.md").read_text()
    assert both.startswith(first)
    assert both.count("### ") == 2


def test_case_31_two_configurations_are_two_rows(files):
    text = (files / "s.md").read_text()
    assert "| bfloat16 | W4 B16 | linear | 3/4 |" in text
    assert "| bfloat16 | W4 B64 | linear | 3/4 |" in text
    assert "| dtype | tree | chat | prose |" in text


def test_R05_the_job_summary_is_the_default(jetspec, prompts, tmp_path, monkeypatch):
    with mock_server() as (url, _):
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
        assert jetspec("gate", "--prompts", prompts, "--url", url).code == 0
    assert "gate passed" in (tmp_path / "summary.md").read_text()


def test_files_are_written_for_failed_runs_too(jetspec, prompts, tmp_path):
    with mock_server(Script(dies_at=3)) as (url, _):
        jetspec(
            "gate", "--prompts", prompts, "--url", url, "--junit", tmp_path / "j.xml", "--summary", tmp_path / "s.md"
        )
    root = ET.parse(tmp_path / "j.xml").getroot()
    assert int(root.get("errors")) == 3
    assert "failed" in (tmp_path / "s.md").read_text()


def test_texts_that_xml_and_json_cannot_hold_survive_as_escapes():
    assert junit.clean("a\x00b\ud800c\ufffe") == "a\\u0000b\\ud800c\\ufffe"
    assert junit.clean("tab\t😀é") == "tab\t😀é"


def test_json_has_no_infinities_and_keeps_odd_text(tmp_path):
    text = json_doc.dumps({"a": math.inf, "rows": [{"x": math.nan, "t": "\ud83d"}], "empty": []})
    json_doc.write_whole(tmp_path / "d.json", text)
    assert json.loads((tmp_path / "d.json").read_text()) == {
        "a": None,
        "rows": [{"x": None, "t": "\ud83d"}],
        "empty": [],
    }


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "d.json"
    json_doc.write_whole(path, "old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        json_doc.write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_markdown_shows_text_as_it_is():
    assert markdown.escape("a|b `c`\n<d> *e*") == "a\\|b \\`c\\` \\<d\\> \\*e\\*"
    assert markdown.table(["h"], [["x|y"]]).splitlines() == ["| h |", "|---|", "| x\\|y |"]


def test_progress_is_a_line_a_prompt_where_nobody_watches(jetspec, prompts):
    with mock_server() as (url, _):
        result = jetspec("gate", "--prompts", prompts, "--url", url)
    lines = [line for line in result.err.splitlines() if line.startswith("prompt ")]
    assert [line.split(":")[0] for line in lines] == [
        "prompt 1/4 text-1",
        "prompt 2/4 text-2",
        "prompt 3/4 chat-1",
        "prompt 4/4 ids-1",
    ]
    assert "decoding, 8 generations\n" in result.err
    assert "\x1b" not in result.err + result.out
