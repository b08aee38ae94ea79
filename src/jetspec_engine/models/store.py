"""Finds models by name: a local folder, a random target, a catalogue name, a folder of the cache, a Hugging Face id.

Knows no draft heads: what joins a head to a target stands one layer up, in ``embedded.pair``. Importing it loads no
torch, so that listing is quick.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jetspec_engine.config import did_you_mean
from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.catalog import CATALOG, CatalogEntry
from jetspec_engine.models.config import CONFIG_FILE
from jetspec_engine.models.hub import find_hub_model, is_hub_id, pull_hub_model
from jetspec_engine.models.json_file import JsonFile
from jetspec_engine.models.marker import is_finished
from jetspec_engine.models.pull import pull_entry
from jetspec_engine.models.random_names import is_random_name, random_folder
from jetspec_engine.records import Progress

MAX_SHOWN_NAME = 200


def resolve(name: str, cache_dir: Path) -> Path:
    """Return the folder of a model that is present. Never downloads.

    Args:
        name: a local folder, ``random:`` and a family, a catalogue name, a folder of the cache, or a Hugging Face id.
        cache_dir: folder of pulled models.

    Raises:
        ArtifactError: no such model, or it has not been pulled; the hint says how.
    """
    folder = find_folder(name, cache_dir)
    if folder is not None:
        return checked_folder(name, folder)
    if name in CATALOG or is_random_name(name):
        raise ArtifactError(f"model {name}: not in the cache {cache_dir}", hint=f"jetspec models pull {name}")
    if is_hub_id(name):
        found = find_hub_model(name)
        if found is not None:
            return found
        raise ArtifactError(
            f"model {name}: no such folder, and not in Hugging Face's cache", hint=f"jetspec models pull {name}"
        )
    raise unknown_model(name)


def pull(name: str, cache_dir: Path, on_progress: Callable[[Progress], None]) -> Path:
    """Make a model present and return its folder; see ``protocol.ModelStore.pull``."""
    folder = find_folder(name, cache_dir)
    if folder is not None:
        return checked_folder(name, folder)
    if name in CATALOG:
        return pull_entry(CATALOG[name], cache_dir, on_progress)
    if is_random_name(name):
        # Loads torch, which finding a model must not.
        from jetspec_engine.models.random_target import make_random_target

        return make_random_target(name, cache_dir)
    if is_hub_id(name):
        return pull_hub_model(name, on_progress)
    raise unknown_model(name)


def check_name(name: str, cache_dir: Path) -> None:
    """Refuse a name that no model can have, before anything is downloaded. Raises ArtifactError."""
    can_be_pulled = name in CATALOG or is_random_name(name) or is_hub_id(name)
    if not can_be_pulled and find_folder(name, cache_dir) is None:
        raise unknown_model(name)


def find_folder(name: str, cache_dir: Path) -> Path | None:
    """Return the folder a name stands for without asking Hugging Face's cache, else None."""
    if is_folder(name):
        return Path(name)
    if is_random_name(name):
        folder = random_folder(name, cache_dir)
        return folder if (folder / CONFIG_FILE).is_file() else None
    if name in CATALOG:
        return cache_dir / name if is_finished(cache_dir / name, CATALOG[name]) else None
    is_plain = bool(name) and Path(name).name == name and not name.startswith(".")
    is_here = is_plain and is_folder(str(cache_dir / name)) and (cache_dir / name / CONFIG_FILE).is_file()
    return cache_dir / name if is_here else None


def is_folder(name: str) -> bool:
    """Say whether a name is that of an existing folder; a name no file system can hold is none."""
    try:
        return bool(name) and Path(name).is_dir()
    except (OSError, ValueError):
        return False


def checked_folder(name: str, folder: Path) -> Path:
    """Return a folder that looks like a model's. Raises ArtifactError."""
    if not (folder / CONFIG_FILE).is_file():
        raise ArtifactError(
            f"model {name!r}: no {CONFIG_FILE} in this folder, expected a Hugging Face model folder",
            hint="jetspec models list",
        )
    return folder


def unknown_model(name: str) -> ArtifactError:
    """Return the error for a name that is none of the four kinds."""
    expected = f"a folder, a Hugging Face id (organisation/model) or one of {', '.join(CATALOG)}"
    shown = repr(name if len(name) <= MAX_SHOWN_NAME else name[:MAX_SHOWN_NAME] + "...")
    hint = did_you_mean(name, list(CATALOG)) or "jetspec models list"
    return ArtifactError(f"model {shown}: no such model, expected {expected}", hint=hint)


class Store:
    """The part of ``protocol.ModelStore`` that needs no draft heads."""

    def list(self, cache_dir: Path) -> list[Mapping[str, Any]]:
        """Return the catalogue's models, then other folders of the cache; see ``protocol.ModelStore.list``."""
        entries = [describe_entry(entry, cache_dir) for entry in CATALOG.values()]
        others = sorted(cache_dir.iterdir()) if cache_dir.is_dir() else []
        return entries + [describe_folder(path) for path in others if is_other_model(path)]

    def pull(self, name: str, cache_dir: Path, on_progress: Callable[[Progress], None]) -> Path:
        """Make a model present and return its folder; see ``protocol.ModelStore.pull``."""
        return pull(name, cache_dir, on_progress)


def describe_entry(entry: CatalogEntry, cache_dir: Path) -> dict[str, Any]:
    """Return one line of the list for a catalogue model."""
    folder = cache_dir / entry.name
    is_present = is_finished(folder, entry)
    return {
        "name": entry.name,
        "kind": "target",
        "is_present": is_present,
        "path": str(folder) if is_present else None,
        "size_bytes": folder_bytes(folder) if is_present else entry.wheel_bytes,
        "licence": entry.licence,
        "source": entry.source,
    }


def is_other_model(path: Path) -> bool:
    """Say whether an entry of the cache is a model that the catalogue does not know."""
    return path.name not in CATALOG and not path.name.startswith(".") and (path / CONFIG_FILE).is_file()


def describe_folder(folder: Path) -> dict[str, Any]:
    """Return one line of the list for a model folder somebody else put into the cache."""
    try:
        is_head = "dflash_config" in JsonFile.read(folder / CONFIG_FILE).values
        kind = "head" if is_head else "target"
    except ArtifactError:
        kind = "unreadable"
    return {
        "name": folder.name,
        "kind": kind,
        "is_present": True,
        "path": str(folder),
        "size_bytes": folder_bytes(folder),
        "licence": None,
        "source": "local",
    }


def folder_bytes(folder: Path) -> int:
    """Return the size of a folder's files in bytes."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
