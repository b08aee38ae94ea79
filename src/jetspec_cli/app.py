"""The program: its commands, and the one place where exceptions become messages and exit codes.

Commands are declared here without importing what they use; their bodies do that.
"""

import errno
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

# Typer re-exports only some of the exceptions of the parser it bundles.
from typer._click.core import Context
from typer._click.exceptions import ClickException
from typer.core import TyperGroup

from jetspec_cli import console, exit_codes, hints
from jetspec_cli.commands import bench, doctor, gate, matrix, models, profile, serve, sweep, train_head
from jetspec_engine import __version__
from jetspec_engine.config import did_you_mean
from jetspec_engine.errors import JetspecError

# What the machine refuses wherever it happens; any other system error is a bug of ours.
FULL_OR_FORBIDDEN = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENOMEM,
)  # fmt: skip
ISSUES_URL = "https://github.com/jetspec/jetspec-toolkit/issues"


class Program(TyperGroup):
    """All commands. An interrupt reaches ``run``: Typer itself would end with 130 and say nothing."""

    def invoke(self, ctx: Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


# rich_markup_mode=None keeps rich out of the start, and pretty_exceptions out of the one handler below.
app = typer.Typer(
    name="jetspec",
    cls=Program,
    help="Tree-drafted speculative decoding you can trust: serve a model, prove its tokens, measure it.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve", short_help="Serve a target and its draft head over HTTP.")(serve.serve)
app.command("gate", short_help="Compare tree decoding with an oracle, token by token.")(gate.gate)
app.command("bench", short_help="Measure one configuration, beside linear and plain decoding.")(bench.bench)
app.command("sweep", short_help="Gate and measure a grid of trees; does the tree pay?")(sweep.sweep)
app.command("profile", short_help="Time rounds by phase and kernel, beside the memory floor.")(profile.profile)
app.command("matrix", short_help="Render results as matrices and reports; find regressions.")(matrix.matrix)
app.add_typer(models.app, name="models")
app.command("doctor")(doctor.doctor)
app.command("train-head")(train_head.train_head)


def show_version(is_wanted: bool) -> None:
    """Print the version and leave."""
    if is_wanted:
        console.data(f"jetspec {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Tree-drafted speculative decoding you can trust: serve a model, prove its tokens, measure it."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit.

    Args:
        argv: the words after ``jetspec``; None takes this process's own.
    """
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(words: list[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = wants_json(words)
    try:
        code = app(words, prog_name="jetspec", standalone_mode=False)
    except JetspecError as error:
        code = exit_codes.of(error)
        console.error(error.what, error.hint or hints.fallback(code, words), code, as_json=as_json)
    except ClickException as error:
        code = exit_codes.BAD_CONFIG
        message, hint = usage_message(error)
        if message:
            console.error(message, hint, code, as_json=as_json)
    except typer.Abort:
        code = exit_codes.INTERRUPTED
        console.error("interrupted", "", code, as_json=as_json)
    except OSError as error:
        code = exit_codes.CANNOT_RUN if error.errno in FULL_OR_FORBIDDEN else exit_codes.BUG
        if code == exit_codes.BUG:
            report_bug(error, as_json=as_json)
        else:
            place = f"{error.filename}: " if error.filename else ""
            console.error(f"{place}{error.strerror}", hints.DISK, code, as_json=as_json)
    except Exception as error:
        code = exit_codes.BUG
        report_bug(error, as_json=as_json)
    return code if isinstance(code, int) else exit_codes.DONE


def wants_json(words: Sequence[str]) -> bool:
    """Say whether a command line asks for JSON, also when it cannot be parsed."""
    own = words[: words.index("--")] if "--" in words else words
    return "--format=json" in own or any(pair == ("--format", "json") for pair in itertools.pairwise(own))


def usage_message(error: ClickException) -> tuple[str, str]:
    """Return a usage error as (one line, hint); ("", "") when help was shown instead."""
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        console.talk(context.get_help() if context is not None else "")
        return "", ""
    possibilities = getattr(error, "possibilities", None)
    if possibilities:
        return str(error), did_you_mean(getattr(error, "option_name", ""), list(possibilities))
    command = context.command_path if context is not None else "jetspec"
    return " ".join(message.split()), f"{command} --help"


def report_bug(error: Exception, *, as_json: bool) -> None:
    """Tell of an exception nobody expected, and where to report it."""
    import traceback

    if os.environ.get("JETSPEC_TRACEBACK"):
        console.talk(traceback.format_exc())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    message = " ".join(str(error).split())[:300]
    hint = f"this is a bug: please report it at {ISSUES_URL}; JETSPEC_TRACEBACK=1 shows where it happened"
    console.error(f"{type(error).__name__} at {where}: {message}", hint, exit_codes.BUG, as_json=as_json)
