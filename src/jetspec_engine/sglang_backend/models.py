"""A target and its head found for SGLang and checked against each other, from their configurations alone.

Loads no weights and no torch. Knows nothing of SGLang beyond what its stock draft model cannot run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jetspec_engine.config import ServeConfig
from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.pair import check_pair
from jetspec_engine.draft.shipped import SHIPPED_HEADS, shipped_head_folder
from jetspec_engine.errors import ArtifactError
from jetspec_engine.json_text import read_json
from jetspec_engine.models import store
from jetspec_engine.models.config import CONFIG_FILE, GENERATION_FILE
from jetspec_engine.records import Progress


def find_models(config: ServeConfig, on_progress: Callable[[Progress], None]) -> tuple[Path, Path]:
    """Return the folders of a target and a head that belong together; what is missing is pulled.

    Raises:
        ArtifactError: one is missing or unreadable, they do not belong together, or SGLang cannot run the head.
        UnavailableError: one has to be downloaded and cannot be.
    """
    cache_dir = Path(config.cache_dir)
    store.check_name(config.target, cache_dir)
    names = {name: target for target, name in SHIPPED_HEADS.items()} | {"auto": config.target}
    if config.head in names:
        head_folder = shipped_head_folder(names[config.head])
    else:
        head_folder = store.pull(config.head, cache_dir, on_progress)
    if head_folder is None:
        raise ArtifactError(f"head {config.head}: none comes with target {config.target}", hint="name one with --head")
    where = f"{head_folder}/{CONFIG_FILE}"
    head = check_head(read_json(head_folder / CONFIG_FILE), where)
    target_folder = store.pull(config.target, cache_dir, on_progress)
    check_pair(head, _facts_of(target_folder), where=where, head_folder=head_folder, target_folder=target_folder)
    return target_folder, head_folder


def check_head(given: object, where: str) -> HeadConfig:
    """Check a parsed head configuration, also for what SGLang's stock draft model would run otherwise than trained.

    Raises:
        ArtifactError: one line with file, key, value and expectation.
    """
    head = HeadConfig.from_mapping(given, where=where)
    if head.is_shifted:
        raise ArtifactError(
            f"{where}: sample_from_anchor: true, expected false: sglang reads rows 1..D of the draft block",
            hint="use --engine embedded",
        )
    return head


def check_pair_folders(target: str, head: str) -> None:
    """Check the head of a local folder (see ``check_head``), and a local target against it.

    A name that is no folder is SGLang's to find, and nothing is known of it yet.

    Raises:
        ArtifactError: one line with file, key, value and expectation.
    """
    file = Path(head) / CONFIG_FILE
    if not file.is_file():
        return
    config = check_head(read_json(file), str(file))
    facts = read_target_facts(Path(target))
    if facts is not None:
        check_pair(config, facts, where=str(file), head_folder=Path(head), target_folder=Path(target))


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """What a target's folder says that its head must agree with, of any architecture SGLang runs; see ``pair``."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def read_target_facts(folder: Path) -> FolderFacts | None:
    """Return the facts of a local folder; None where there is none, or its configuration has other keys."""
    if not (folder / CONFIG_FILE).is_file():
        return None
    whole = read_json(folder / CONFIG_FILE)
    text = {**whole, **(whole.get("text_config") or {})} if isinstance(whole, dict) else {}
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
    sizes = [text.get(key) for key in keys]
    vocab, hidden, layers, positions = (size if isinstance(size, int) else 0 for size in sizes)
    if not all((vocab, hidden, layers, positions)):
        return None
    generation = folder / GENERATION_FILE
    files = [read_json(generation)] if generation.is_file() else []
    given = [each.get("eos_token_id") for each in (*files, whole, text) if isinstance(each, dict)]
    ends = [end for each in given for end in (each if isinstance(each, list) else [each]) if isinstance(end, int)]
    bos = text.get("bos_token_id")
    return FolderFacts(
        vocab_size=vocab, hidden_size=hidden, num_layers=layers, max_position_embeddings=positions,
        bos_token_id=bos if isinstance(bos, int) else None, eos_token_ids=tuple(dict.fromkeys(ends)),
    )  # fmt: skip


def _facts_of(folder: Path) -> FolderFacts:
    """Return a target's facts; which architectures run is for SGLang to say, which verify trees for the worker."""
    where, config = f"{folder}/{CONFIG_FILE}", read_json(folder / CONFIG_FILE)
    if isinstance(config, dict) and "dflash_config" in config:
        raise ArtifactError(
            f"{where}: dflash_config: present, expected a target", hint="this folder holds a draft head: use --head"
        )
    facts = read_target_facts(folder)
    if facts is None:
        raise ArtifactError(f"{where}: expected vocab_size, hidden_size, num_hidden_layers, max_position_embeddings")
    return facts
