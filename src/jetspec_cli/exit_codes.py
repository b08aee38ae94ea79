"""What each exit code means, and which exception leads to which. Knows nothing of commands or messages."""

from jetspec_engine.errors import (
    ArtifactError,
    BusyError,
    ConfigError,
    EngineError,
    InconclusiveError,
    JetspecError,
    RequestError,
    UnavailableError,
)

DONE = 0
FAILED = 1
BAD_CONFIG = 2
CANNOT_RUN = 3
BAD_ARTIFACT = 4
INCONCLUSIVE = 5
ENGINE_FAILED = 6
BUG = 70
INTERRUPTED = 130

# A request that a server refuses, or a server that stays busy, stops a command just as a dead server does.
CODE_OF_ERROR: dict[type[JetspecError], int] = {
    ConfigError: BAD_CONFIG,
    UnavailableError: CANNOT_RUN,
    ArtifactError: BAD_ARTIFACT,
    InconclusiveError: INCONCLUSIVE,
    EngineError: ENGINE_FAILED,
    RequestError: ENGINE_FAILED,
    BusyError: ENGINE_FAILED,
}


def of(error: JetspecError) -> int:
    """Return the exit code of an error; a class nobody listed is a bug of ours (70)."""
    for kind, code in CODE_OF_ERROR.items():
        if isinstance(error, kind):
            return code
    return BUG


def error_class(code: int) -> type[JetspecError]:
    """Return the exception class a child's exit code stands for; codes a child should not have are EngineError."""
    start_failures: dict[int, type[JetspecError]] = {
        BAD_CONFIG: ConfigError,
        CANNOT_RUN: UnavailableError,
        BAD_ARTIFACT: ArtifactError,
    }
    return start_failures.get(code, EngineError)
