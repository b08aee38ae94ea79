"""The engine never looks at the environment, and the command line never changes it (R21, R22), by the source's word.

A test at run time sees only the paths it takes; this one sees every line.
"""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")
READERS = ("app.py", "console.py", "environment.py", "launcher.py")


def uses(tree: ast.AST) -> list[ast.Attribute | ast.Name | ast.alias]:
    """Return every mention of the environment."""
    found: list[ast.Attribute | ast.Name | ast.alias] = []
    for node in ast.walk(tree):
        name = {ast.Attribute: "attr", ast.Name: "id", ast.alias: "name"}.get(type(node))
        if name is not None and getattr(node, name) in NAMES:
            found.append(node)  # type: ignore[arg-type]
    return found


def changes(tree: ast.AST) -> list[str]:
    """Return the places where the environment would be changed."""
    found = []
    for node in ast.walk(tree):
        is_stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del))
        if is_stored and uses(node.value):  # type: ignore[attr-defined]
            found.append(ast.unparse(node))
        is_method = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
        if is_method and node.value.attr == "environ" and node.attr not in ("get", "items", "keys", "values", "copy"):  # type: ignore[attr-defined]
            found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and node.attr in ("putenv", "unsetenv"):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", sorted((SOURCE / "jetspec_engine").rglob("*.py")), ids=lambda path: path.name)
def test_R22_the_engine_never_mentions_the_environment(path):
    assert not uses(ast.parse(path.read_text(encoding="utf-8")))


def test_R22_the_command_line_reads_it_in_few_places_and_never_changes_it():
    readers = set()
    for path in (SOURCE / "jetspec_cli").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert changes(tree) == [], path
        if uses(tree):
            readers.add(path.name)
    assert readers == set(READERS)


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['HF_TOKEN'] = ''",
        "del os.environ['HF_TOKEN']",
        "os.environ.update(a='b')",
        "os.environ.setdefault('A', 'b')",
        "os.environ.pop('A')",
        "os.putenv('A', 'b')",
    ],
)
def test_a_change_would_be_seen(line):
    assert changes(ast.parse(line))


def test_a_look_would_be_seen():
    for line in ("os.environ.get('A')", "os.getenv('A')", "from os import environ"):
        assert uses(ast.parse(line))
        assert not changes(ast.parse(line))
