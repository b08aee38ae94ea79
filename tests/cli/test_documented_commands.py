"""Commands in the documentation parse as they are written (R28): no unknown command, no unknown option."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from jetspec_cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("prompts/*.md"), *ROOT.glob("results/**/*.md")]
OTHERS = [ROOT / "Makefile", ROOT / ".ci" / "run", *ROOT.glob(".github/workflows/*.yml")]
COMMAND = re.compile(r"^\s*(?:[-@$]\s*|run:\s*)?(?:[A-Z_]+=\S+\s+)*(jetspec\s.*)$")


def commands_in(path: Path) -> list[str]:
    """Return the jetspec command lines of a file: in fenced blocks of Markdown, in any line of other files."""
    found, is_inside, text = [], path.suffix != ".md", path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if path.suffix == ".md" and line.lstrip().startswith("```"):
            is_inside = not is_inside
        match = COMMAND.match(line) if is_inside else None
        if match:
            found.append(match[1])
    return found


def parse(line: str) -> None:
    """Parse a command line without running it. Raises a usage error."""
    words = shlex.split(line, comments=True)
    for end in ("|", ">", ">>", "&&", "||", ";", "&", "2>"):
        words = words[: words.index(end)] if end in words else words
    command = typer.main.get_command(app.app)
    context, rest = None, words[1:]
    while True:
        context = command.make_context(words[0], list(rest), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        remaining = [*getattr(context, "_protected_args", []), *context.args]
        if not remaining:
            return
        _, command, rest = command.resolve_command(context, remaining)


FILES = [path for path in [*DOCUMENTS, *OTHERS] if path.is_file()]
LINES = [(path.relative_to(ROOT), line) for path in FILES for line in commands_in(path)]


@pytest.mark.parametrize(("path", "line"), LINES, ids=[f"{path}: {line}" for path, line in LINES])
def test_R28_documented_commands_parse(path, line):
    if "$(" in line or "$" in line:
        line = re.sub(r"\$\(?\w+\)?", "x", line)
    parse(line)


READ = re.compile(r"--(?:prompts|gate)[= ]([\w./,-]+)")
READS = {(path, name) for path, line in LINES for names in READ.findall(line) for name in names.split(",")}
# Without a folder it is a file of the reader's own.
OURS = sorted((path, name) for path, name in READS if "/" in name)


@pytest.mark.parametrize(("path", "name"), OURS, ids=[f"{path}: {name}" for path, name in OURS])
def test_R28_the_files_that_documented_commands_read_are_there(path, name):
    assert (ROOT / name).is_file()


SOURCES = [*FILES, *ROOT.glob("src/**/*.py")]
INSTALLS = re.compile(r"pip install [^\n`]*?(jetspec|\.)\[([a-z,]+)\]")
FOUND = [(path.relative_to(ROOT), *match.groups()) for path in SOURCES for match in INSTALLS.finditer(path.read_text())]


@pytest.mark.parametrize(("path", "what", "extras"), FOUND, ids=[f"{path}: {extras}" for path, _, extras in FOUND])
def test_R28_what_is_said_to_be_installed_can_be(path, what, extras):
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(offered)
    # By its name pip finds only what is installed already, as it is where a hint of ours is read.
    assert (what == "jetspec") == (path.suffix == ".py")


@pytest.mark.parametrize("line", ["jetspec nonsense", "jetspec gate --nonsense", "jetspec serve --tree-width four"])
def test_the_check_above_can_fail(line):
    with pytest.raises(app.ClickException):
        parse(line)


@pytest.mark.parametrize("line", ["jetspec serve --tree-width 8 --budget 16", "jetspec gate --prompts p.jsonl | tee x"])
def test_right_commands_pass(line):
    parse(line)
