"""Hugging Face models: what is asked for, and how failures read. The server is never contacted."""

from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from jetspec_engine.errors import ArtifactError, UnavailableError
from jetspec_engine.models import hub
from jetspec_engine.records import Progress


def answer_with(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> list[dict[str, Any]]:
    """Replace the library's download: nothing is cached, and a download has this outcome."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        if options.get("local_files_only"):
            raise LocalEntryNotFoundError("not cached")
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def http_error(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    error = kind.__new__(kind)
    Exception.__init__(error, f"{status} from the server\nmore lines")
    error.response = SimpleNamespace(status_code=status)
    return error


@pytest.mark.parametrize("name", ["org/model", "Qwen/Qwen3-8B", "a/b.c_d-e"])
def test_hub_ids_are_recognised(name: str) -> None:
    assert hub.is_hub_id(name)


@pytest.mark.parametrize("name", ["model", "/a/b", "../a", "a/b/c", "a/", "./a", "a b/c", "~/model"])
def test_other_names_are_not(name: str) -> None:
    assert not hub.is_hub_id(name)


def test_only_weights_and_data_files_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = answer_with(monkeypatch, tmp_path)
    assert hub.pull_hub_model("org/model", lambda _: None) == tmp_path
    options = calls[-1]

    def is_fetched(file: str) -> bool:
        wanted = any(fnmatch(file, pattern) for pattern in options["allow_patterns"])
        return wanted and not any(fnmatch(file, pattern) for pattern in options["ignore_patterns"])

    for file in ("model-00001-of-00002.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", "LICENSE"):
        assert is_fetched(file)
    for file in ("pytorch_model.bin", "modeling_evil.py", "original/consolidated.safetensors", "model.pt", "x.pkl"):
        assert not is_fetched(file)
    assert "trust_remote_code" not in options
    assert "token" not in options, "R22: the library's own token settings are left alone"


def test_a_cached_model_is_not_downloaded_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def snapshot_download(name: str, **options: Any) -> str:
        assert options["local_files_only"], "the server was asked"
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert hub.pull_hub_model("org/model", lambda _: None) == hub.find_hub_model("org/model") == tmp_path


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (http_error(RepositoryNotFoundError, 404), ArtifactError),
        (http_error(GatedRepoError, 403), ArtifactError),
        (http_error(HfHubHTTPError, 401), ArtifactError),
        (HFValidationError("bad name"), ArtifactError),
        (http_error(HfHubHTTPError, 503), UnavailableError),
        (LocalEntryNotFoundError("offline"), UnavailableError),
        (ConnectionError("no route"), UnavailableError),
        (OSError(28, "No space left on device"), UnavailableError),
    ],
)
def test_failures_are_one_line_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, outcome: Exception, expected: type[Exception]
) -> None:
    answer_with(monkeypatch, outcome)
    with pytest.raises(expected, match="org/model") as caught:
        hub.pull_hub_model("org/model", lambda _: None)
    assert type(caught.value) is expected
    assert "\n" not in str(caught.value)
    assert caught.value.hint  # type: ignore[attr-defined]


def test_bytes_are_reported_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    reports: list[Progress] = []
    bar_class: Any = hub.make_bar_class("org/model", reports.append)
    with bar_class(total=100, unit="B", desc="x", mininterval=0) as bar:
        bar.update(40)
        bar.update(60)
    with bar_class(total=3, unit="it", mininterval=0) as files:
        files.update(3)
    assert reports[0] == Progress(label="downloading org/model", done=0, total=100, unit="bytes")
    assert reports[-1].done == 100
    assert all(report.unit == "bytes" for report in reports)
    assert capfd.readouterr() == ("", "")
