"""Finding the tensors of a head folder in its safetensors files, before any of them is read.

Knows nothing of what a head should contain. Pickled weights are never opened, and no name in an index leads out of the
folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from jetspec_engine.errors import ArtifactError
from jetspec_engine.json_text import read_json

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# A head has some hundred tensors of about a hundred header bytes each; the format itself would allow 100 MB.
MAX_HEADER_BYTES = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies and what its file says about it (dtype as in the file, e.g. ``"BF16"``)."""

    path: Path
    shape: tuple[int, ...]
    dtype: str

    @property
    def where(self) -> str:
        """The file's name for messages."""
        return str(self.path)


def find_tensors(folder: Path) -> dict[str, TensorEntry]:
    """Return every tensor of the folder's weight files by name.

    Raises:
        ArtifactError: no weights, a bad index, a missing or damaged file, a tensor in two files, or an index that
            names another file than the one that has the tensor.
    """
    weight_map = _read_index(folder)
    names = sorted(set(weight_map.values())) if weight_map is not None else [SINGLE_NAME]
    found: dict[str, TensorEntry] = {}
    for name in names:
        for tensor, entry in _read_header(folder / name).items():
            if tensor in found:
                raise ArtifactError(f"{entry.where}: {tensor}: also in {found[tensor].where}, expected one file for it")
            found[tensor] = entry
    for tensor, name in (weight_map or {}).items():
        if tensor not in found or found[tensor].path.name != name:
            raise ArtifactError(f"{folder}/{name}: {tensor}: missing, expected as {INDEX_NAME} says")
    return found


def _read_index(folder: Path) -> Mapping[str, str] | None:
    path = folder / INDEX_NAME
    if not path.exists():
        if not (folder / SINGLE_NAME).exists():
            raise ArtifactError(f"{folder}: no {SINGLE_NAME} and no {INDEX_NAME}", hint=_missing_hint(folder))
        return None
    index = read_json(path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    where = f"{folder}/{INDEX_NAME}"
    if not isinstance(weight_map, dict) or not weight_map:
        raise ArtifactError(f"{where}: weight_map: {str(weight_map)[:80]!r}, expected tensor names with file names")
    for tensor, name in weight_map.items():
        if not _is_plain_file_name(name):
            expected = "a .safetensors file name without a folder"
            raise ArtifactError(f"{where}: weight_map.{tensor}: {str(name)[:80]!r}, expected {expected}")
    return weight_map


def _is_plain_file_name(name: Any) -> bool:
    is_text = isinstance(name, str) and name.isprintable() and name.endswith(".safetensors")
    return is_text and not any(mark in name for mark in ("/", "\\", ":", "\0")) and not name.startswith(".")


def _missing_hint(folder: Path) -> str:
    if not folder.is_dir():
        return f"no such folder: {folder}"
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
    return f"{pickled[0]} is not read: only safetensors weights are" if pickled else "is this a draft head's folder?"


def _read_header(path: Path) -> dict[str, TensorEntry]:
    where = str(path)
    # Whoever opens a pipe waits for somebody to write.
    if path.exists() and not path.is_file():
        raise ArtifactError(f"{where}: no regular file, expected a safetensors file")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise ArtifactError(f"{where}: {error.strerror}, expected a safetensors file") from error
    if size < 8 or header_bytes > min(size - 8, MAX_HEADER_BYTES):
        limit = max(0, min(size - 8, MAX_HEADER_BYTES))
        raise ArtifactError(f"{where}: header of {header_bytes} bytes, expected at most {limit}: truncated?")
    try:
        # The library checks offsets against shapes, dtypes and the file's size, overlaps and gaps included.
        # "np": asking for torch's tensors would load torch, and no tensor is read here.
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            return {
                name: TensorEntry(path=path, shape=tuple(part.get_shape()), dtype=str(part.get_dtype()))
                for name, part in slices.items()
            }
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        raise ArtifactError(f"{where}: {error}, expected a whole safetensors file") from error
