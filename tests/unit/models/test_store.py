"""Finding models by name, and what is listed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models import hub, store
from jetspec_engine.models.catalog import SMOLLM2_135M
from jetspec_engine.models.marker import write_marker
from support.tiny_models import make_tiny_target


@pytest.fixture(autouse=True)
def no_hub_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's cache is empty and its server is never asked."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.setattr(hub, "pull_hub_model", lambda *_: pytest.fail("resolving must not download"))


def finished_demo(cache: Path) -> Path:
    folder = make_tiny_target(cache / "smollm2-135m")
    write_marker(folder, SMOLLM2_135M)
    return folder


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path / "mine")
    assert store.resolve(str(folder), tmp_path / "cache") == folder
    assert store.pull(str(folder), tmp_path / "cache", lambda _: None) == folder


def test_a_pulled_catalogue_model_is_found(tmp_path: Path) -> None:
    folder = finished_demo(tmp_path)
    assert store.resolve("smollm2-135m", tmp_path) == folder
    assert store.pull("smollm2-135m", tmp_path, lambda _: None) == tmp_path / "smollm2-135m"


def test_a_missing_catalogue_model_comes_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="smollm2-135m: not in the cache") as caught:
        store.resolve("smollm2-135m", tmp_path)
    assert caught.value.hint == "jetspec models pull smollm2-135m"


def test_a_half_made_catalogue_model_is_missing(tmp_path: Path) -> None:
    make_tiny_target(tmp_path / "smollm2-135m")
    with pytest.raises(ArtifactError, match="not in the cache"):
        store.resolve("smollm2-135m", tmp_path)


def test_a_folder_of_the_cache_is_found_by_its_name(tmp_path: Path) -> None:
    make_tiny_target(tmp_path / "mine")
    assert store.resolve("mine", tmp_path) == tmp_path / "mine"


@pytest.mark.parametrize("name", ["smollm-135m", "smollm2_135m", "smollm2"])
def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path, name: str) -> None:
    for find in (store.resolve, lambda n, c: store.pull(n, c, lambda _: None)):
        with pytest.raises(ArtifactError, match=f"{name}.*no such model") as caught:
            find(name, tmp_path)
        assert caught.value.hint == "did you mean smollm2-135m?"


@pytest.mark.parametrize("name", ["", "..", ".hidden", "/no/such/folder", "a/b/c", "no such"])
def test_what_is_no_name_at_all_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "config.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"expected a (folder|Hugging Face model folder)") as caught:
        store.resolve(name, tmp_path)
    assert caught.value.hint == "jetspec models list"


def test_a_folder_without_a_configuration_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for find in (store.resolve, lambda n, c: store.pull(n, c, lambda _: None)):
        with pytest.raises(ArtifactError, match=r"no config\.json in this folder"):
            find(str(tmp_path / "empty"), tmp_path)


def test_a_name_no_file_system_can_hold_is_refused_and_not_shown_whole(tmp_path: Path) -> None:
    for name in ("a" * 5000, "nul\0byte"):
        with pytest.raises(ArtifactError, match="no such model") as caught:
            store.resolve(name, tmp_path)
        assert len(caught.value.what) < 500


def test_a_hub_model_that_is_not_cached_comes_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="org/model: no such folder") as caught:
        store.resolve("org/model", tmp_path)
    assert caught.value.hint == "jetspec models pull org/model"


def test_the_list_has_catalogue_and_cache(tmp_path: Path) -> None:
    before = store.Store().list(tmp_path / "nowhere")
    assert [(entry["name"], entry["is_present"], entry["path"]) for entry in before] == [("smollm2-135m", False, None)]
    finished_demo(tmp_path)
    make_tiny_target(tmp_path / "mine")
    head = make_tiny_target(tmp_path / "some-head", with_tokenizer=False)
    (head / "config.json").write_text(json.dumps({"dflash_config": {}}))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    (tmp_path / "downloads").mkdir()
    after = {entry["name"]: entry for entry in store.Store().list(tmp_path)}
    assert {name: entry["kind"] for name, entry in after.items()} == {
        "smollm2-135m": "target",
        "mine": "target",
        "some-head": "head",
        "broken": "unreadable",
    }
    assert after["smollm2-135m"]["is_present"]
    assert after["smollm2-135m"]["licence"] == "Apache-2.0"
    for entry in after.values():
        assert set(entry) == {"name", "kind", "is_present", "path", "size_bytes", "licence", "source"}
        assert Path(entry["path"]).is_dir()
        assert entry["size_bytes"] > 0


def test_listing_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom jetspec_engine import registry\n"
        "registry.model_store().list(Path(sys.argv[1]))\n"
        "print([name for name in ('torch', 'transformers', 'gguf', 'huggingface_hub') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
