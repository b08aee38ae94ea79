"""Draft heads on disk: the public folder format, read with every check and written so that other engines read it too.

A folder holds ``config.json`` and one or more safetensors files. Nothing in it is executed: no pickle, no remote code.
Knows nothing of the target; see ``pair``.

Source: the public DFlash / JetSpec checkpoint format.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.config_refusals import PLUS_PLUS_HINT, is_plus_plus_name
from jetspec_engine.draft.head import DraftHead
from jetspec_engine.draft.weight_files import INDEX_NAME, SINGLE_NAME, TensorEntry, find_tensors
from jetspec_engine.errors import ArtifactError, ConfigError, system_error
from jetspec_engine.json_text import read_json

CONFIG_NAME = "config.json"
DTYPE_NAMES = ("BF16", "F16", "F32")
MAX_SHARD_BYTES = 14 * 2**20


def read_head_config(folder: Path) -> HeadConfig:
    """Return the checked configuration of a head folder.

    Raises:
        ArtifactError: see ``HeadConfig.from_mapping``.
    """
    path = folder / CONFIG_NAME
    return HeadConfig.from_mapping(read_json(path), where=f"{folder}/{CONFIG_NAME}")


def load_head(folder: Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> DraftHead:
    """Load a head with all its weights checked.

    Args:
        folder: holds ``config.json`` and the weights.
        dtype: of the parameters afterwards; the file's is converted.
        device: where they are put.

    Returns:
        The module, its configuration as ``head.config``; parameters need no gradient until a trainer says so.

    Raises:
        ArtifactError: one line naming file, tensor or key, value and expectation.
    """
    folder = Path(folder)
    config = read_head_config(folder)
    with torch.device("meta"):
        head = DraftHead(config)
    entries = find_tensors(folder)
    _check_entries(folder, entries, {name: tuple(value.shape) for name, value in head.state_dict().items()})
    weights = {name: value.to(device=device, dtype=dtype) for name, value in _read_tensors(entries).items()}
    head.load_state_dict(weights, assign=True)
    return head.requires_grad_(False).eval()


def check_replaceable(folder: Path, *, is_resumed: bool) -> None:
    """Raise ConfigError when saving a head in a folder would remove a model.

    Args:
        folder: need not exist.
        is_resumed: a head, or weights that a killed save left without a configuration, are this run's own.
    """
    found = (folder / CONFIG_NAME, folder / INDEX_NAME, *sorted(folder.glob("model*.safetensors")))
    held = [path.name for path in found if path.exists()]
    if held and not (is_resumed and (held[0] != CONFIG_NAME or _is_head(folder))):
        raise ConfigError(
            f"out: {folder}: it holds {held[0]}, a model that would be replaced",
            hint="another --out, or --resume for this run's own head",
        )


def _is_head(folder: Path) -> bool:
    try:
        read_head_config(folder)
    except ArtifactError:
        return False
    return True


def save_head(
    folder: Path,
    head: DraftHead,
    config: HeadConfig,
    extra: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.bfloat16,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[Path]:
    """Write a head in the public format, all three causality keys included.

    The configuration is written last, so a folder with one is whole; weight files of an earlier save are removed.

    Args:
        folder: made if missing.
        head: not changed; may live on any device.
        config: what to write; usually ``head.config``.
        extra: top-level keys of the writer's own (training record, licence), kept by ``HeadConfig`` as ``extra``.
        dtype: of the tensors on disk.
        max_shard_bytes: a new file begins when this would be passed; a larger single tensor gets its own file.

    Returns:
        The files written, configuration last.

    Raises:
        ArtifactError: a weight is not finite in ``dtype``; nothing has been written then.
    """
    folder = Path(folder)
    tensors = {name: value.detach().to(dtype).contiguous().cpu() for name, value in head.state_dict().items()}
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise ArtifactError(f"{folder}: {name}: not finite in {dtype}, expected finite weights")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (folder / CONFIG_NAME, folder / INDEX_NAME, *folder.glob("model*.safetensors")):
        stale.unlink(missing_ok=True)
    written = _write_shards(folder, _split(tensors, max_shard_bytes))
    document = replace(config, extra={**config.extra, **(extra or {}), "dtype": str(dtype).removeprefix("torch.")})
    return [*written, _write_json(folder / CONFIG_NAME, document.to_mapping())]


def _check_entries(folder: Path, entries: Mapping[str, TensorEntry], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, entry in entries.items():
        if name not in shapes:
            hint = PLUS_PLUS_HINT if is_plus_plus_name(name) else ""
            raise ArtifactError(f"{entry.where}: {name}: unknown tensor, expected those of a plain head", hint=hint)
        if entry.shape != shapes[name]:
            expected = f"{list(shapes[name])} as {CONFIG_NAME} says"
            raise ArtifactError(f"{entry.where}: {name}: shape {list(entry.shape)}, expected {expected}")
        if entry.dtype not in DTYPE_NAMES:
            raise ArtifactError(f"{entry.where}: {name}: dtype {entry.dtype}, expected {', '.join(DTYPE_NAMES)}")
    for name in shapes:
        if name not in entries:
            raise ArtifactError(f"{folder}: {name}: missing tensor, expected shape {list(shapes[name])}")


def _read_tensors(entries: Mapping[str, TensorEntry]) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted({entry.path for entry in entries.values()}):
        names = [name for name, entry in entries.items() if entry.path == path]
        try:
            with safe_open(path, framework="pt") as file:
                tensors.update({name: file.get_tensor(name) for name in names})
        except (SafetensorError, OSError) as error:
            raise ArtifactError(f"{entries[names[0]].where}: {error}, expected a whole safetensors file") from error
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            count = int((~torch.isfinite(value)).sum())
            raise ArtifactError(f"{entries[name].where}: {name}: {count} NaN or infinite values, expected none")
    return tensors


def _split(tensors: Mapping[str, torch.Tensor], max_bytes: int) -> list[dict[str, torch.Tensor]]:
    shards: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name, value in tensors.items():
        if shards[-1] and filled + value.nbytes > max_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = value
        filled += value.nbytes
    return shards


def _write_shards(folder: Path, shards: list[dict[str, torch.Tensor]]) -> list[Path]:
    total = len(shards)
    names = [SINGLE_NAME] if total == 1 else [f"model-{i + 1:05d}-of-{total:05d}.safetensors" for i in range(total)]
    for name, shard in zip(names, shards, strict=True):
        try:
            save_file(shard, folder / name, metadata={"format": "pt"})
        except SafetensorError as error:
            raise system_error(error, folder / name) from error
    paths = [folder / name for name in names]
    if total > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        size = sum(value.nbytes for shard in shards for value in shard.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        paths.append(_write_json(folder / INDEX_NAME, index))
    return paths


def _write_json(path: Path, document: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path
