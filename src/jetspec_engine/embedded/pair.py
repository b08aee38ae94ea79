"""A target and its draft head found by name and checked against each other, from their configurations.

The one place below the engine that knows both models and heads. Loads no weights and no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.pair import PairReport, check_pair
from jetspec_engine.draft.shipped import SHIPPED_HEADS, shipped_head_folder
from jetspec_engine.draft.weight_files import find_tensors
from jetspec_engine.errors import ArtifactError
from jetspec_engine.json_text import read_json
from jetspec_engine.models import store
from jetspec_engine.models.config import CONFIG_FILE, DecoderConfig
from jetspec_engine.records import Progress

AUTO_HEAD = "auto"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and a head that belong together.

    Attributes:
        target_folder, head_folder: where they are.
        target, head: their configurations.
        report: what follows from the pair.
    """

    target_folder: Path
    head_folder: Path
    target: DecoderConfig
    head: HeadConfig
    report: PairReport


def resolve_pair(target: str, head: str, cache_dir: Path) -> Pair:
    """Find a target and a head and check that they belong together. Never downloads.

    Args:
        target: a folder, a catalogue name or a Hugging Face id.
        head: the same, or "auto" for the head that comes with this package for the target.
        cache_dir: folder of pulled models.

    Raises:
        ArtifactError: one of them is missing or unreadable, or they do not belong together.
    """
    target_folder = store.resolve(target, cache_dir)
    target_config = DecoderConfig.from_folder(target_folder)
    head_folder = resolve_head(head, target, cache_dir)
    where = f"{head_folder}/{CONFIG_FILE}"
    head_config = HeadConfig.from_mapping(read_json(head_folder / CONFIG_FILE), where=where)
    report = check_pair(head_config, target_config, where=where, head_folder=head_folder, target_folder=target_folder)
    return Pair(
        target_folder=target_folder, head_folder=head_folder, target=target_config, head=head_config, report=report
    )


def resolve_head(head: str, target: str, cache_dir: Path) -> Path:
    """Return a head's folder; "auto" and the shipped heads' own names need no cache. Raises ArtifactError."""
    shipped_for = target if head == AUTO_HEAD else next((t for t, name in SHIPPED_HEADS.items() if name == head), None)
    if shipped_for is None:
        return store.resolve(head, cache_dir)
    # A folder of the cache given by its path is still the catalogue's model.
    folder = shipped_head_folder(shipped_for) or shipped_head_folder(Path(shipped_for).name)
    if folder is None:
        targets = ", ".join(SHIPPED_HEADS)
        raise ArtifactError(
            f"head {head!r}: no draft head comes with this package for target {target!r}",
            hint=f"give a head's folder or Hugging Face id (one is shipped for {targets}), or --drafter recall",
        )
    return folder


class PairStore(store.Store):
    """``protocol.ModelStore``: the store of models, the shipped heads and the check of a pair."""

    def list(self, cache_dir: Path) -> list[Mapping[str, Any]]:
        """Return the catalogue's targets, the shipped heads, then other models of the cache."""
        heads = [(name, shipped_head_folder(target)) for target, name in SHIPPED_HEADS.items()]
        return [*super().list(cache_dir), *(describe_head(name, folder) for name, folder in heads)]

    def pull(self, name: str, cache_dir: Path, on_progress: Callable[[Progress], None]) -> Path:
        """Make a model present and return its folder; a shipped head is present already."""
        target = next((target for target, head in SHIPPED_HEADS.items() if head == name), None)
        return resolve_head(name, target, cache_dir) if target else super().pull(name, cache_dir, on_progress)

    def inspect(self, target: str, head: str | None, cache_dir: Path) -> Mapping[str, Any]:
        """Check that a target and a head belong together and return both configurations, resolved.

        Of the weights only the files' headers are read: that they are there, whole and safe to read.

        Returns:
            ``target`` and ``head``, each with name, path, weights and config (plain data), and ``pair`` with
            max_seq_len, limited_by and notice. Without a head (None) the target alone.

        Raises:
            ArtifactError: see ``resolve_pair`` and ``find_tensors``.
        """
        # First the target by itself: what is wrong with it must not hide behind a head that is missing.
        folder = store.resolve(target, cache_dir)
        described = _described(target, folder, DecoderConfig.from_folder(folder))
        if head is None:
            return {"target": described}
        pair = resolve_pair(target, head, cache_dir)
        return {
            "target": described,
            "head": _described(head, pair.head_folder, pair.head),
            "pair": {**asdict(pair.report), "notice": pair.report.notice},
        }


def _described(name: str, folder: Path, config: Any) -> dict[str, Any]:
    entries = find_tensors(folder).values()
    weights = {
        "num_files": len({entry.path for entry in entries}),
        "num_tensors": len(entries),
        "dtypes": sorted({entry.dtype for entry in entries}),
    }
    return {"name": name, "path": str(folder), "weights": weights, "config": asdict(config)}


def describe_head(name: str, folder: Path | None) -> dict[str, Any]:
    """Return one line of the list for a head that comes with the package."""
    return {
        "name": name,
        "kind": "head",
        "is_present": folder is not None,
        "path": str(folder) if folder else None,
        "size_bytes": store.folder_bytes(folder) if folder else 0,
        "licence": "Apache-2.0",
        "source": "comes with jetspec",
    }
