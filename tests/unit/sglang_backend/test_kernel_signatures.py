"""What a kernel's signature may hold: Triton's compiler evaluates annotations and refuses all but its own constexpr.

Its interpreter, which is what runs without a GPU, takes any; so the sources are read.
"""

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "src"


def kernels(source):
    """Return the functions that a decorator called ``jit`` compiles."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            names = [ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list]
            if any(name.split(".")[-1] == "jit" for name in names):
                yield node


def faults(source):
    """Return what the compiler would refuse."""
    for kernel in kernels(source):
        for argument in kernel.args.args:
            if argument.annotation is not None and ast.unparse(argument.annotation) != "tl.constexpr":
                yield f"{kernel.name}: {argument.arg}: {ast.unparse(argument.annotation)}"
        if kernel.returns is not None:
            yield f"{kernel.name}: -> {ast.unparse(kernel.returns)}"


@pytest.mark.parametrize("decorator", ["@triton.jit", "@jit", "@triton.jit(do_not_specialize=['n'])"])
def test_an_annotation_is_found(decorator):
    assert list(faults(f"{decorator}\ndef k(a: Any, W: tl.constexpr) -> None: ...")) == ["k: a: Any", "k: -> None"]
    assert not list(faults(f"{decorator}\ndef k(a, W: tl.constexpr): ..."))


def test_no_kernel_has_an_annotation_that_triton_refuses():
    paths = [path for path in SOURCES.rglob("*.py") if any(kernels(path.read_text()))]
    assert len(paths) > 5
    assert not [f"{path.name}: {fault}" for path in paths for fault in faults(path.read_text())]
