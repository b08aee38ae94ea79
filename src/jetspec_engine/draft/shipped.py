"""Draft heads that come inside the package, by the catalogue name of their target.

Knows nothing of how targets are found or pulled.
"""

from importlib.resources import files
from pathlib import Path

SHIPPED_HEADS = {"smollm2-135m": "smollm2-135m-head"}


def shipped_head_folder(target_name: str) -> Path | None:
    """Return the folder of the head shipped for a target's catalogue name, None when there is none here."""
    folder_name = SHIPPED_HEADS.get(target_name)
    if folder_name is None:
        return None
    folder = Path(str(files("jetspec_engine"))) / "assets" / folder_name
    return folder if (folder / "config.json").is_file() else None
