"""Models by Hugging Face id, kept in Hugging Face's own cache so that nothing is downloaded twice.

Only weights (safetensors), JSON files, templates and licences are fetched: no pickles and no code. Tokens, mirrors
and offline mode are the library's own settings. Knows no model family.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetspec_engine.errors import ArtifactError, UnavailableError
from jetspec_engine.records import Progress

HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+")
WANTED = ["*.safetensors", "*.json", "*.jinja", "LICENSE*", "NOTICE*"]
UNWANTED = ["*/*"]


def is_hub_id(name: str) -> bool:
    """Say whether a name has the form ``organisation/model``."""
    return HUB_ID.fullmatch(name) is not None


def find_hub_model(name: str) -> Path | None:
    """Return the folder of a model that is in Hugging Face's cache, else None. Never downloads."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=WANTED, ignore_patterns=UNWANTED, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def pull_hub_model(name: str, on_progress: Callable[[Progress], None]) -> Path:
    """Download a model into Hugging Face's cache and return its folder.

    Raises:
        ArtifactError: no such model, or no access to it.
        UnavailableError: Hugging Face cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    found = find_hub_model(name)
    if found is not None:
        return found
    try:
        folder = snapshot_download(
            name, allow_patterns=WANTED, ignore_patterns=UNWANTED, tqdm_class=make_bar_class(name, on_progress)
        )
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ArtifactError(
            f"{name}: not on Hugging Face, or not open to you",
            hint="check the name; for gated models accept the terms and set HF_TOKEN",
        ) from error
    except HfHubHTTPError as error:
        is_refused = error.response is not None and error.response.status_code in (401, 403)
        kind = ArtifactError if is_refused else UnavailableError
        raise kind(
            f"{name}: Hugging Face answered: {first_line(error)}",
            hint="for gated models accept the terms and set HF_TOKEN",
        ) from error
    # Connection errors come from several HTTP libraries, by version.
    except Exception as error:
        raise UnavailableError(
            f"{name}: Hugging Face cannot be reached: {first_line(error)}",
            hint="check the network, or give a local folder",
        ) from error
    return Path(folder)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def make_bar_class(name: str, on_progress: Callable[[Progress], None]) -> type:
    """Return a progress bar class for huggingface_hub that prints nothing and reports bytes."""
    from tqdm import tqdm

    class ReportingBar(tqdm):
        monitor_interval = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def display(self, *_args: Any, **_kwargs: Any) -> None:
            if self.unit == "B":
                on_progress(
                    Progress(label=f"downloading {name}", done=int(self.n), total=int(self.total or 0), unit="bytes")
                )

    return ReportingBar
