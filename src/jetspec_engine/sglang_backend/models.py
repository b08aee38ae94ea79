"""A target and its head found for SGLang and checked against each other, from their configurations alone.

Loads no weights and no torch. Knows nothing of SGLang beyond what its stock draft model cannot run.
"""

from pathlib import Path

from jetspec_engine.config import ServeConfig
from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.json_text import read_json
from jetspec_engine.draft.pair import check_pair
from jetspec_engine.draft.shipped import SHIPPED_HEADS, shipped_head_folder
from jetspec_engine.errors import ArtifactError
from jetspec_engine.models import store
from jetspec_engine.models.config import CONFIG_FILE, DecoderConfig


def find_models(config: ServeConfig) -> tuple[Path, Path]:
    """Return the folders of a target and a head that belong together. Never downloads.

    Raises:
        ArtifactError: one is missing or unreadable, they do not belong together, or SGLang cannot run the head.
    """
    cache_dir = Path(config.cache_dir)
    target_folder = store.resolve(config.target, cache_dir)
    names = {name: target for target, name in SHIPPED_HEADS.items()} | {"auto": config.target}
    if config.head in names:
        head_folder = shipped_head_folder(names[config.head])
    else:
        head_folder = store.resolve(config.head, cache_dir)
    if head_folder is None:
        raise ArtifactError(f"head {config.head}: none comes with target {config.target}", hint="name one with --head")
    where = f"{head_folder}/{CONFIG_FILE}"
    head = check_head(read_json(head_folder / CONFIG_FILE), where)
    target = DecoderConfig.from_folder(target_folder)
    check_pair(head, target, where=where, head_folder=head_folder, target_folder=target_folder)
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


def check_head_folder(path: str) -> None:
    """Check the head of a local folder (see ``check_head``); a name that is no folder is SGLang's to find."""
    file = Path(path) / CONFIG_FILE
    if file.is_file():
        check_head(read_json(file), str(file))
