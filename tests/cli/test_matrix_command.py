"""``jetspec matrix``: every format from one sweep, what is refused, and regressions against a baseline."""

import csv
import io
import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from jetspec_cli import app
from jetspec_cli.reporting.html_page import shade
from support.mock_server import Script
from support.stream_server import stream_server

GRID = ("--rule", "best_first,top2gap", "--beta", "0.5,1", "--g0", "0.5,1", "--tree-width", "4,8", "--budget", "16,32")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep in which W8 B32 best_first fails its gate."""

    def change(call, tokens):
        is_bad = (call.tree["rule"], call.tree["width"], call.tree["budget"]) == ("best_first", 8, 32)
        return [tokens[0] + 1, *tokens[1:]] if is_bad else tokens

    folder = tmp_path_factory.mktemp("swept")
    rows = ({"id": f"p{n}", "prompt": f"text {n}", "class": ("code", "prose")[n % 2]} for n in range(4))
    (folder / "p.jsonl").write_text("".join(json.dumps({**row, "max_new_tokens": 16}) + "\n" for row in rows))
    with stream_server(Script(change=change)) as (url, _):
        words = ["sweep", "--prompts", str(folder / "p.jsonl"), "--url", url, *GRID, "--out", str(folder / "r")]
        assert app.run(words) == 1
    return folder / "r"


@pytest.fixture
def results(swept, tmp_path):
    """A copy of the sweep's folder, to be changed at will."""
    return Path(shutil.copytree(swept, tmp_path / "r"))


def test_R04_the_terminal_shows_matrices_and_the_break_even(jetspec, results):
    result = jetspec("matrix", results)
    assert result.code == 0
    assert "speedup over linear by tree width x budget, best_first\nW \\ B  16" in result.out
    assert "step cost ratio to linear by beta x g0, W4 B16" in result.out
    assert re.search(r"W4 B16: accept ratio 1\.000 <= step cost ratio 1\.143; measured speedup over linear", result.out)
    assert "gate failed" in result.out
    [line] = [line for line in result.out.splitlines() if re.match(r"W8 B32 +failed", line)]
    assert "/" not in line, "no percentiles of times"
    assert line.split()[-1] == "-"


@pytest.mark.parametrize("kind", ["table", "md", "csv", "json", "html", "svg"])
def test_R16_every_report_holds_both_sides_of_the_break_even(jetspec, results, tmp_path, kind):
    out = tmp_path / f"report.{kind}"
    if kind == "svg":
        pytest.importorskip("matplotlib")
    assert jetspec("matrix", results, "--format", kind, "--out", out).code == 0
    text = out.read_text()
    for name in ("accept ratio", "step cost ratio"):
        assert name in text or name.replace(" ", "_") in text
    if kind not in ("csv", "svg"):
        # Which of the two is larger is said in words, and not left to the reader.
        assert re.search(r"accept ratio 1\.000 (\\?<|&lt;)= step cost ratio 1\.143", text)


def test_R04_a_failed_cell_is_a_hole_in_every_speed_matrix(jetspec, results):
    content = jetspec("matrix", results, "--format", "json").document
    [group] = content["groups"]
    matrices = {matrix["title"]: matrix for matrix in group["matrices"]}
    speed = matrices["speedup over linear by tree width x budget, best_first"]
    assert (speed["rows"], speed["columns"]) == ([4, 8], [16, 32])
    assert speed["values"][1][1] is None
    assert all(value > 0 for value in (*speed["values"][0], speed["values"][1][0]))
    verdicts = matrices["verdict by tree width x budget, best_first"]
    assert verdicts["values"][1][1] == "gate failed"
    assert len([title for title in matrices if title.startswith("accept length by beta x g0")]) == 4


def test_case_34_accept_length_and_speedup_by_class_in_every_text_format(jetspec, results):
    content = jetspec("matrix", results, "--format", "json").document
    matrices = {matrix["title"]: matrix for matrix in content["groups"][0]["matrices"]}
    lengths = matrices["accept length by class of text"]
    assert lengths["columns"] == ["code", "prose", "class mean", "pooled"]
    by_cell = dict(zip(lengths["rows"], lengths["values"], strict=True))
    assert set(by_cell) == {cell["label"] for cell in content["groups"][0]["cells"]} - {"plain"}
    for code, prose, mean, pooled in by_cell.values():
        assert mean == pytest.approx((code + prose) / 2)
        assert min(code, prose) <= pooled <= max(code, prose)
    speeds = matrices["speedup over linear by class of text"]
    assert "W8 B32" not in speeds["rows"], "its gate failed"
    assert "linear" not in speeds["rows"]
    [row] = [row for row in csv.DictReader(io.StringIO(jetspec("matrix", results, "--format", "csv").out))
             if row["label"] == "W4 B16"]  # fmt: skip
    assert float(row["accept_length_code"]) == by_cell["W4 B16"][0]
    for kind in ("table", "md", "html"):
        assert "accept length by class of text" in jetspec("matrix", results, "--format", kind).out


def test_markdown_and_csv(jetspec, results, tmp_path):
    markdown = jetspec("matrix", results, "--format", "md").out
    for block in markdown.split("\n\n"):
        if block.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1
    rows = list(csv.DictReader(io.StringIO(jetspec("matrix", results, "--format", "csv").out)))
    assert len(rows) == 2 + 4 + 16
    bad = next(row for row in rows if row["label"] == "W8 B32")
    assert bad["gate"] == "failed"
    assert bad["tok_s_value"] == bad["speedup_linear_value"] == ""
    assert float(bad["accept_length"]) > 1


class Names(HTMLParser):
    """Collects what has no accessible name, and every address from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.unnamed, self.outside, self.counts, self.ids, self.labels = [], [], {}, set(), []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.ids |= {given["id"]} if "id" in given else set()
        self.labels += (given.get("aria-labelledby") or "").split()
        if tag in ("svg", "section") or given.get("role") == "region":
            self.unnamed += [] if "aria-label" in given or "aria-labelledby" in given else [tag]
        for key in ("src", "href"):
            self.outside += [given[key]] if key in given and not given[key].startswith("data:") else []


def test_R04_the_page_is_self_contained_with_names_on_charts_and_tables(jetspec, results, tmp_path):
    page = tmp_path / "page.html"
    assert jetspec("matrix", results, "--out", page).code == 0
    text, names = page.read_text(), Names()
    names.feed(text)
    assert names.unnamed == names.outside == []
    assert set(names.labels) <= names.ids
    assert names.counts["caption"] == names.counts["table"]
    assert 'class="even"' in text
    assert text.count("<circle") == 19
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_text_from_outside_is_escaped_in_the_page(jetspec, results, tmp_path):
    file = results / "sweep.json"
    file.write_text(file.read_text().replace("mock-target", "<script>alert(1)</script>"))
    assert "<script>alert" not in jetspec("matrix", results, "--format", "html").out


def test_text_where_a_number_belongs_is_escaped_in_the_page(jetspec, results):
    file = results / "sweep.json"
    document = json.loads(file.read_text())
    for cell in document["cells"]:
        cell["accept_length"] = '"><script>alert(1)</script>'
    file.write_text(json.dumps(document))
    result = jetspec("matrix", results, "--format", "html")
    assert result.code in (0, 4)
    assert "<script>alert" not in result.out


def test_a_spreadsheet_finds_no_formula(jetspec, results):
    file = results / "sweep.json"
    file.write_text(file.read_text().replace("mock-target", "=HYPERLINK(1)"))
    rows = list(csv.DictReader(io.StringIO(jetspec("matrix", results, "--format", "csv").out)))
    assert {row["target"] for row in rows} == {"'=HYPERLINK(1)"}
    assert all(float(row["accept_length"]) >= 1 for row in rows)


@pytest.mark.parametrize("kind", ["table", "md", "csv", "html"])
def test_a_report_does_not_steer_a_terminal(jetspec, results, tmp_path, kind):
    file = results / "sweep.json"
    file.write_text(file.read_text().replace("mock-target", "\\u001b[2J\\u009b31m\\u202e"))
    assert jetspec("matrix", results, "--format", kind, "--out", tmp_path / "o").code == 0
    for text in (jetspec("matrix", results, "--format", kind).out, (tmp_path / "o").read_text()):
        assert "u001b" in text
        assert not re.search("[\x1b\x9b\u202e]", text)


@pytest.mark.parametrize("kind", ["table", "html"])
def test_numbers_beyond_a_float_are_4(jetspec, results, kind):
    file = results / "sweep.json"
    document = json.loads(file.read_text())
    for cell in document["cells"]:
        for found in cell["against"].values():
            found["speedup"] = {"value": 10**400, "low": None, "high": None}
            found["speedup_by_class"] = dict.fromkeys(found.get("speedup_by_class", ()), 10**400)
    file.write_text(json.dumps(document))
    assert jetspec("matrix", results, "--format", kind).code == 4


def test_a_picture_of_hundreds_of_plots_is_refused_and_not_drawn_for_minutes(jetspec, results, tmp_path):
    pytest.importorskip("matplotlib")
    file = results / "sweep.json"
    document = json.loads(file.read_text())
    [cell] = [cell for cell in document["cells"] if cell["label"] == "W4 B16"]
    document["cells"] += [
        {**cell, "label": f"g0 {n}", "tree": {**cell["tree"], "rule": "top2gap", "g0": float(n)}} for n in range(150)
    ]
    file.write_text(json.dumps(document))
    result = jetspec("matrix", results, "--out", tmp_path / "p.png")
    assert result.code == 2
    assert "in one picture, expected at most" in result.err
    assert jetspec("matrix", results, "--out", tmp_path / "p.html").code == 0


@pytest.mark.parametrize("kind", ["json", "table"])
def test_results_are_never_replaced_by_a_report_of_them(jetspec, results, kind):
    file = results / "sweep.json"
    before = file.read_bytes()
    result = jetspec("matrix", results, "--format", kind, "--out", file)
    assert result.code == 2
    assert "holds results, which would be lost" in result.err + result.out
    assert file.read_bytes() == before
    report = results / "matrix.json"
    assert [jetspec("matrix", results, "--out", report).code for _ in range(2)] == [0, 0]


def test_the_name_decides_the_format_in_capitals_too(jetspec, results, tmp_path):
    assert jetspec("matrix", results, "--out", tmp_path / "X.HTML").code == 0
    assert (tmp_path / "X.HTML").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_pictures(jetspec, results, tmp_path, kind):
    pytest.importorskip("matplotlib")
    out = tmp_path / f"picture.{kind}"
    assert jetspec("matrix", results, "--out", out).code == 0
    assert (b"<svg" if kind == "svg" else b"\x89PNG") in out.read_bytes()[:2000]


def test_without_matplotlib_a_picture_is_3_with_the_extra(jetspec, results, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = jetspec("matrix", results, "--out", tmp_path / "p.png")
    assert result.code == 3
    assert "pip install 'jetspec[report]'" in result.err
    assert not (tmp_path / "p.png").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": 2}, "schema version 2, this jetspec reads version 1"),
        ({"kind": "gate"}, "kind 'gate'"),
        ({"cells": None}, "cells missing"),
    ],
)
def test_other_documents_are_refused_by_name(jetspec, results, change, said):
    file = results / "sweep.json"
    document = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    result = jetspec("matrix", file)
    assert result.code == 4
    assert said in result.err


@pytest.mark.parametrize("kind", ["table", "html", "csv"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda cell: cell.update(e2e_s={"p50": "x"}),
        lambda cell: cell.update(tok_s=True),
        lambda cell: cell.update(gate={}),
        lambda cell: cell.update(accept_length="x"),
    ],
)
def test_results_edited_by_hand_are_4_and_no_bug_of_ours(jetspec, results, edit, kind):
    file = results / "sweep.json"
    document = json.loads(file.read_text())
    for cell in document["cells"]:
        edit(cell)
    file.write_text(json.dumps(document))
    result = jetspec("matrix", file, "--format", kind)
    # A format that leaves the edited figure out may still be written.
    assert result.code in (0, 4), result.err
    assert result.code == 0 or "results: not as this jetspec writes them" in result.err


def test_results_without_roles_are_not_guessed_at(jetspec, results):
    file = results / "sweep.json"
    document = json.loads(file.read_text())
    for cell in document["cells"]:
        del cell["role"]
    file.write_text(json.dumps(document))
    result = jetspec("matrix", file)
    assert (result.code, result.out) == (4, "")
    assert "results: not as this jetspec writes them: KeyError: 'role'" in result.err


@pytest.mark.parametrize("name", ["page.pdf", "page.htm", "page.1"])
def test_a_name_of_no_format_is_2_and_nothing_is_written(jetspec, results, tmp_path, name):
    result = jetspec("matrix", results, "--out", tmp_path / name)
    assert result.code == 2
    assert "expected table, md, csv, json, html, svg, png" in result.err
    assert not (tmp_path / name).exists()
    assert jetspec("matrix", results, "--out", tmp_path / name, "--format", "table").code == 0
    assert jetspec("matrix", results, "--out", tmp_path / "page.txt").code == 0


@pytest.mark.parametrize("kind", ["table", "md", "html"])
def test_the_break_even_of_the_only_tree_cell_is_said_once(jetspec, results, kind):
    file = results / "sweep.json"
    document = json.loads(file.read_text())
    document["cells"] = [cell for cell in document["cells"] if cell["role"] != "tree" or cell["label"] == "W4 B16"]
    file.write_text(json.dumps(document))
    result = jetspec("matrix", file, "--format", kind)
    assert result.code == 0
    assert len(re.findall(r"W4 B16: accept ratio \S+ (?:\\?>|\\?<=|&gt;|&lt;=) step cost ratio", result.out)) == 1


KEPT = sorted((Path(__file__).parents[2] / "results").rglob("matrix.md"))


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.parent.name)
def test_the_matrices_in_results_are_what_is_rendered_today(jetspec, tmp_path, kept):
    assert jetspec("matrix", kept.parent, "--out", tmp_path / "matrix.md").code == 0
    assert (tmp_path / "matrix.md").read_text() == kept.read_text()


def test_folders_without_results_and_missing_files_are_4(jetspec, tmp_path):
    assert jetspec("matrix", tmp_path).code == 4
    assert jetspec("matrix", tmp_path / "none.json").code == 4


def test_runs_are_merged_and_the_latest_of_equal_cells_is_shown(jetspec, results):
    document = json.loads((results / "sweep.json").read_text())
    document["started_at"] = "2099-01-01T00:00:00+00:00"
    document["cells"] = [cell for cell in document["cells"] if cell["label"] == "W4 B16"]
    document["cells"][0]["accept_length"] = 9.0
    (results / "later.json").write_text(json.dumps(document))
    content = jetspec("matrix", results, "--format", "json").document
    assert len(content["groups"][0]["cells"]) == 2 + 4 + 16
    cell = next(cell for cell in content["groups"][0]["cells"] if cell["label"] == "W4 B16")
    assert cell["accept_length"] == 9.0
    assert "W4 B16: measured 2 times, the latest is shown" in content["notes"]
    assert [run["source"] for run in content["runs"]] == ["sweep.json", "later.json"]


@pytest.mark.parametrize(
    ("part", "change", "shown"),
    [
        ("environment", {"processor": "Another CPU", "gpus": []}, "Another CPU"),
        ("configuration", {"max_new_tokens": 7}, "at most 7 tokens"),
        ("configuration", {"request_rate": 2.5}, "2.5 requests/s"),
    ],
)
def test_runs_of_another_machine_or_load_replace_nothing(jetspec, results, part, change, shown):
    document = json.loads((results / "sweep.json").read_text())
    document["environment"]["gpus"] = []
    (results / "sweep.json").write_text(json.dumps(document))
    document[part] |= change
    document["started_at"] = "2099-01-01T00:00:00+00:00"
    (results / "later.json").write_text(json.dumps(document))
    content = jetspec("matrix", results, "--format", "json").document
    first, second = content["groups"]
    assert len(first["cells"]) == len(second["cells"]) == 2 + 4 + 16
    assert shown in second["setting"]["details"]
    assert shown not in first["setting"]["details"]
    assert shown in jetspec("matrix", results, "--format", "md").out
    assert not any("measured 2 times" in note for note in content["notes"])


def test_speeds_of_another_machine_are_no_regression(jetspec, results, tmp_path):
    document = json.loads((results / "sweep.json").read_text())
    document["environment"] |= {"processor": "A slower CPU", "gpus": []}
    new = tmp_path / "new.json"
    new.write_text(json.dumps(slower(document, "W4 B16", 5)))
    result = jetspec("matrix", new, "--baseline", results)
    assert result.code == 0
    assert "this on A slower CPU: speeds are not compared" in result.out
    for cell in document["cells"]:
        cell["by_prompt"] = {name: [n, 5 * r, s] for name, (n, r, s) in cell["by_prompt"].items()}
    new.write_text(json.dumps(document))
    assert "accept_length" in jetspec("matrix", new, "--baseline", results).err


def test_a_baseline_of_another_load_is_5(jetspec, results, tmp_path):
    document = json.loads((results / "sweep.json").read_text())
    document["configuration"]["max_new_tokens"] = 7
    new = tmp_path / "new.json"
    new.write_text(json.dumps(document))
    assert jetspec("matrix", new, "--baseline", results).code == 5


def slower(document: dict, label: str, factor: float) -> dict:
    """Return a copy in which one cell's requests took longer, or its rounds gave less."""
    changed = json.loads(json.dumps(document))
    for cell in changed["cells"]:
        if cell["label"] == label:
            cell["by_prompt"] = {name: [n, r, s * factor] for name, (n, r, s) in cell["by_prompt"].items()}
    return changed


def test_a_slower_cell_is_a_regression_and_exits_1(jetspec, results, tmp_path):
    document = json.loads((results / "sweep.json").read_text())
    new = tmp_path / "new.json"
    new.write_text(json.dumps(slower(document, "W4 B16", 1.5)))
    same = jetspec("matrix", results, "--baseline", results)
    worse = jetspec("matrix", new, "--baseline", results)
    better = jetspec("matrix", results, "--baseline", new)
    assert (same.code, worse.code, better.code) == (0, 1, 0)
    assert "regression: W4 B16: tok_s" in worse.err
    assert worse.err.count("regression:") == 1
    assert "0 regressions" in same.out


def test_a_shorter_accept_length_is_a_regression_too(jetspec, results, tmp_path):
    document = json.loads((results / "sweep.json").read_text())
    for cell in document["cells"]:
        if cell["label"] == "W4 B16":
            cell["by_prompt"] = {name: [n, r * 2, s] for name, (n, r, s) in cell["by_prompt"].items()}
    new = tmp_path / "new.json"
    new.write_text(json.dumps(document))
    result = jetspec("matrix", new, "--baseline", results)
    assert result.code == 1
    assert "regression: W4 B16: accept_length" in result.err
    assert jetspec("matrix", results, "--baseline", new).code == 0


@pytest.mark.parametrize("kind", ["table", "md", "html"])
def test_a_regression_stands_in_every_report_of_words(jetspec, results, tmp_path, kind):
    new = tmp_path / "new.json"
    new.write_text(json.dumps(slower(json.loads((results / "sweep.json").read_text()), "W4 B16", 1.5)))
    result = jetspec("matrix", new, "--baseline", results, "--format", kind)
    assert result.code == 1
    assert "REGRESSION" in result.out
    assert "1 regressions" in result.out


def test_noise_is_no_regression(jetspec, results, tmp_path):
    document = json.loads((results / "sweep.json").read_text())
    for cell in document["cells"]:
        if cell["tok_s"]:
            cell["tok_s"] |= {"min": cell["tok_s"]["value"] * 0.5, "max": cell["tok_s"]["value"] * 1.5}
    new = tmp_path / "new.json"
    new.write_text(json.dumps(slower(document, "W4 B16", 1.3)))
    assert jetspec("matrix", new, "--baseline", results).code == 0


def test_a_gate_that_fails_now_is_a_regression(jetspec, results, tmp_path):
    document = json.loads((results / "sweep.json").read_text())
    for cell in document["cells"]:
        if cell["label"] == "W4 B16":
            cell["gate"]["outcome"] = "failed"
    new = tmp_path / "new.json"
    new.write_text(json.dumps(document))
    result = jetspec("matrix", new, "--baseline", results)
    assert result.code == 1
    assert "regression: W4 B16: gate" in result.err


def test_a_baseline_of_something_else_is_5(jetspec, results, tmp_path):
    other = tmp_path / "other.json"
    other.write_text((results / "sweep.json").read_text().replace("mock-target", "another"))
    assert jetspec("matrix", results, "--baseline", other).code == 5


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = (
    "<script>addEventListener('load', () => {const d = document.documentElement;"
    "document.querySelectorAll('th button').forEach((b) => b.click());"
    "const paper = getComputedStyle(document.body).backgroundColor.replaceAll(' ', '');"
    "top.document.title = `WIDTHS ${d.scrollWidth} ${innerWidth} ${paper} ${window.failed || 'clean'}`})</script>"
)
PHONE, DESKTOP = 390, 1280
PAPER = {"light": "rgb(255,255,255)", "dark": "rgb(20,23,26)"}


def test_the_dearer_rounds_are_the_red_ones_and_small_differences_are_pale():
    assert ["bad" in one for one in shade("round_ms", [[6.5, 7.7]])[0]] == [False, True]
    assert ["bad" in one for one in shade("tok_s_at", [[400, 800]])[0]] == [True, False]
    pale, full = shade("step_cost_ratio", [[1.02]])[0], shade("step_cost_ratio", [[1.5]])[0]
    assert "--far:5%" in pale[0], "rounded from 4.5"
    assert "--far:45%" in full[0]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", PAPER)
def test_the_page_does_not_overflow_in_a_browser(jetspec, results, tmp_path, width, scheme):
    page = tmp_path / "page.html"
    assert jetspec("matrix", results, "--out", page).code == 0
    watch = "<script>window.onerror = (what) => {window.failed = what}</script>"
    text = page.read_text().replace("<head>", "<head>" + watch).replace("</body>", PROBE + "</body>")
    # No window is as narrow as a phone: the page is put into a frame that is.
    framed = f'<title></title><iframe style="width:{width}px;border:0" srcdoc="{escape(text)}"></iframe>'
    page.write_text(framed)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900", "--dump-dom"]
    command += [f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"<title>WIDTHS (\d+) (\d+) (\S+) (\w+)", done.stdout)
    assert int(found[1]) <= int(found[2]) == width
    assert (found[3], found[4]) == (PAPER[scheme], "clean")
