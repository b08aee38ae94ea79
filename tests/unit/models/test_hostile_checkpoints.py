"""Checkpoints that were cut, flipped or made to harm: one of our errors in one line, or a model; nothing else."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetspec_engine.draft.checkpoint import load_head
from jetspec_engine.embedded.pair import PairStore
from jetspec_engine.errors import ArtifactError, JetspecError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.tokenizer import ModelTokenizer
from jetspec_engine.models.weights import load_weights
from support.tiny_pairs import make_tiny_pair

FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
HUGE = 1 << 62


def load_target(folder: Path) -> Any:
    config = DecoderConfig.from_folder(folder)
    ModelTokenizer.from_folder(folder, config)
    return load_weights(folder, config, dtype=torch.float32)


def load_draft(folder: Path) -> Any:
    return load_head(folder, dtype=torch.float32, device="cpu")


LOADERS: dict[str, Callable[[Path], Any]] = {"target": load_target, "head": load_draft}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("pair")
    make_tiny_pair(folder)
    return folder


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def outcome(load: Callable[[Path], Any], folder: Path) -> str:
    """Load and return our error's line, or an empty string when it loaded."""
    said = ""
    try:
        load(folder)
    except ArtifactError as error:
        said = error.what
    assert "\n" not in said
    assert len(said) < 2000
    return said


@pytest.mark.parametrize("kind", LOADERS)
@FUZZ
@given(data=st.data())
def test_case_20_a_file_with_flipped_bits_loads_or_is_refused(kind: str, pair: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(pair / kind)), label="file")
    whole = path.read_bytes()
    # Headers and JSON are where a bit matters: half of the places are near the beginning.
    near = min(len(whole) - 1, 2000)
    places = data.draw(st.lists(st.integers(0, near) | st.integers(0, len(whole) - 1), min_size=1, max_size=4))
    broken = bytearray(whole)
    for place in places:
        broken[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        path.write_bytes(broken)
        outcome(LOADERS[kind], pair / kind)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("kind", LOADERS)
@FUZZ
@given(data=st.data())
def test_case_20_a_truncated_file_of_any_kind_is_refused(kind: str, pair: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files_of(pair / kind)), label="file")
    whole = path.read_bytes()
    length = data.draw(st.integers(0, len(whole.rstrip()) - 1), label="length")
    try:
        path.write_bytes(whole[:length])
        said = outcome(LOADERS[kind], pair / kind)
    finally:
        path.write_bytes(whole)
    # What is not needed to load may be cut; weights and configuration may not.
    if path.suffix == ".safetensors" or path.name == "config.json":
        assert path.name in said or str(pair / kind) in said


def header(entries: dict[str, Any], data: bytes = b"\0" * 64) -> bytes:
    raw = json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE = {
    "a header longer than the file": struct.pack("<Q", HUGE) + b"{}",
    "a header of zero bytes": struct.pack("<Q", 0),
    "no header at all": b"",
    "a header that is no JSON": struct.pack("<Q", 4) + b"nope",
    "a header that is a list": header([]),  # type: ignore[arg-type]
    "offsets beyond the file": header({"norm.weight": entry([16], 0, HUGE)}),
    "offsets backwards": header({"norm.weight": entry([16], 64, 0)}),
    "overlapping tensors": header({"a": entry([16], 0, 64), "b": entry([16], 0, 64)}),
    "a shape that overflows": header({"norm.weight": entry([HUGE, HUGE], 0, 64)}),
    "a negative shape": header({"norm.weight": entry([-1], 0, 64)}),
    "an unknown dtype": header({"norm.weight": entry([16], 0, 64, "PICKLE")}),
    "nesting without end": struct.pack("<Q", 60000) + b"[" * 60000,
    "a name that is a path": header({"../../etc/passwd": entry([16], 0, 64)}),
    "a gigabyte of nothing": header({"norm.weight": entry([1 << 28], 0, 1 << 30)}),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_case_20_hostile_safetensors_are_refused(kind: str, content: bytes, pair: Path) -> None:
    (path,) = [one for one in files_of(pair / kind) if one.suffix == ".safetensors"]
    whole = path.read_bytes()
    try:
        path.write_bytes(content)
        assert outcome(LOADERS[kind], pair / kind)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 100_000, b'{"num_hidden_layers": 1e999}', b"\xff\xfe{}", b"null", b"",
     b'{"hidden_size": NaN}', b'{"vocab_size": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
@pytest.mark.parametrize("kind", LOADERS)
def test_case_20_hostile_configurations_are_refused(kind: str, content: bytes, pair: Path) -> None:
    path = pair / kind / "config.json"
    whole = path.read_bytes()
    try:
        path.write_bytes(content)
        assert "config.json" in outcome(LOADERS[kind], pair / kind)
    finally:
        path.write_bytes(whole)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("make", [as_folder, as_pipe])
@pytest.mark.parametrize("kind", LOADERS)
def test_case_20_what_is_no_file_is_refused_and_nobody_waits_for_a_pipe(
    kind: str, make: Callable[[Path], None], name: str, pair: Path
) -> None:
    path = pair / kind / name
    if not path.exists():
        pytest.skip("a head has none")
    kept = path.rename(pair / "kept")
    try:
        make(path)
        said = outcome(LOADERS[kind], pair / kind)
    finally:
        path.rmdir() if path.is_dir() else path.unlink()
        kept.rename(path)
    # Without settings a tokenizer still is one.
    assert said or name == "tokenizer_config.json"


NAMES = ["../up", "../../etc", "/etc/passwd", "a/../../b", "..", ".", "", "a\0b", "~root", "file:///etc", "x" * 5000,
         "C:\\windows", "org/name/../../..", "\n", "http://127.0.0.1/x", "-rf", "%2e%2e/x", "\ud800"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_models_name_is_no_path_out_of_the_cache(name: str, tmp_path: Path) -> None:
    cache = tmp_path / "deep" / "cache"
    cache.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(JetspecError) as caught:
        PairStore().pull(name, cache, lambda progress: None)
    assert "\n" not in caught.value.what
    assert sorted(path for path in tmp_path.rglob("*") if cache not in path.parents) == before
