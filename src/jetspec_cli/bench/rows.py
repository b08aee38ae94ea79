"""Rows of a measurement: one JSON object a line, appended and synced one by one, so that a killed run keeps them.

The first line says which measurement the rows belong to. A last line torn by a crash is cut off. Rows with the same
key replace earlier ones. Every row carries a checksum, so a row that was changed is refused. One process at a time
writes a file, where the system has locks. Knows nothing of what rows mean beyond their key.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Self

from jetspec_cli.bench.plan import Block
from jetspec_cli.json_text import parse_json
from jetspec_cli.reporting.json_doc import finite
from jetspec_engine.errors import ArtifactError, ConfigError, UnavailableError

SCHEMA_VERSION = 1
KEY = ("pairing", "repeat", "prompt_id", "arm")
CHECKSUM = "crc32"
HEADER_BEGINS = b'{"schema_version": '

Row = dict[str, Any]


class RowLog:
    """The rows of one measurement, in memory and, where a path is given, in a file.

    Args:
        path: None keeps rows in memory only.
        fingerprint: of the measurement.

    Raises:
        ConfigError: the file holds rows of another measurement.
        ArtifactError: the file is not one of ours.
        UnavailableError: another process is writing it.

    Attributes:
        num_found: rows that were there before.
    """

    def __init__(self, path: Path | None, fingerprint: str) -> None:
        self._rows: dict[tuple[Any, ...], Row] = {}
        self._file: IO[bytes] | None = None
        if path is not None:
            self._file = path.open("ab")
            try:
                _lock(self._file, path)
                for row in _open_rows(path, fingerprint):
                    self._keep(row)
            except BaseException:
                self._file.close()
                raise
            if os.fstat(self._file.fileno()).st_size == 0:
                self._write({"schema_version": SCHEMA_VERSION, "kind": "rows", "fingerprint": fingerprint})
        self.num_found = len(self._rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def num_rows(self) -> int:
        """Rows there are now."""
        return len(self._rows)

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows; each is on the disk when this returns."""
        for row in rows:
            self._keep(row)
            if self._file is not None:
                self._write(row)

    def get(self, pairing: str, repeat: int, prompt_id: str, arm: str) -> Row | None:
        """Return the latest row with a key, or None."""
        return self._rows.get((pairing, repeat, prompt_id, arm))

    def has(self, block: Block) -> bool:
        """Say whether every request of a block succeeded before; a block with a failure is measured again."""
        rows = (
            self.get(block.pairing.label, block.repeat, prompt.prompt_id, arm.label)
            for prompt in block.prompts
            for arm in block.pairing.arms
        )
        return all(row is not None and row["is_ok"] for row in rows)

    def _keep(self, row: Row) -> None:
        self._rows[tuple(row[name] for name in KEY)] = row

    def _write(self, row: Mapping[str, Any]) -> None:
        assert self._file is not None
        sealed = {**row, CHECKSUM: _checksum(row)}
        try:
            self._file.write(_line(sealed) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), self._file.name) from error


def _lock(file: IO[bytes], path: Path) -> None:
    """Keep other processes from writing; a process that ends, however it ends, lets go."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        hint = "wait for it, or write to another place: --out"
        raise UnavailableError(f"{path}: another run is writing it", hint=hint) from error
    except OSError:
        # Some network file systems have no locks.
        return


def _open_rows(path: Path, fingerprint: str) -> list[Row]:
    """Return the rows in a file, after cutting off a torn last line."""
    content = path.read_bytes()
    if not content.startswith(HEADER_BEGINS[: len(content)]):
        raise ArtifactError(f"{path}:1: not rows of a measurement", hint="write to another place: --out")
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    lines = whole.splitlines()
    if not lines:
        return []
    header = _parse(path, 1, lines[0])
    if header.get("kind") != "rows" or header.get("schema_version") != SCHEMA_VERSION:
        raise ArtifactError(f"{path}:1: not rows of schema {SCHEMA_VERSION}", hint="write to another place: --out")
    if header.get("fingerprint") != fingerprint:
        raise ConfigError(
            f"{path}: holds rows of another measurement (prompts, trees, load or server differ)",
            hint="write to another place with --out, or delete that file",
        )
    return [_parse(path, number, line) for number, line in enumerate(lines[1:], start=2)]


def _parse(path: Path, number: int, line: bytes) -> Row:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise ArtifactError(f"{path}:{number}: not JSON") from error
    if not isinstance(row, dict) or (number > 1 and not all(isinstance(row.get(name), (str, int)) for name in KEY)):
        raise ArtifactError(f"{path}:{number}: not a row of a measurement")
    if CHECKSUM in row and row.pop(CHECKSUM) != _checksum(row):
        raise ArtifactError(
            f"{path}:{number}: changed since it was written", hint="delete that line to measure it again"
        )
    return row


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(finite(row), ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace")


def _checksum(row: Mapping[str, Any]) -> int:
    return zlib.crc32(_line(row))
