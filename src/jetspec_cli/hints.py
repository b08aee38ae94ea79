"""Where to look next when an error names no place itself. Knows exit codes and command names, nothing of errors."""

from collections.abc import Sequence

from jetspec_cli import exit_codes

GROUPS = ("models",)
DISK = "check free space (df) and permissions there"


def fallback(code: int, words: Sequence[str]) -> str:
    """Return a hint for an error that has none.

    Args:
        code: the exit code it leads to.
        words: what follows ``jetspec`` on the command line.

    Returns:
        The command's help for what the caller gave, ``jetspec doctor`` for what the machine lacks, else nothing. A
        server that another command started has no words of the user's: that command gives the hint.
    """
    if "--stop-with-stdin" in words:
        return ""
    if code == exit_codes.CANNOT_RUN:
        return "jetspec doctor"
    if code in (exit_codes.BAD_CONFIG, exit_codes.BAD_ARTIFACT):
        return " ".join(["jetspec", *command_of(words), "--help"])
    return ""


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command's own words, such as ``["models", "pull"]``."""
    plain = [word for word in words[:2] if not word.startswith("-")]
    return plain[: 2 if plain[:1] and plain[0] in GROUPS else 1]
