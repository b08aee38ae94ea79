"""Whether SGLang can run here, by its metadata and CUDA's driver."""

from importlib import metadata

import pytest

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import ArtifactError, UnavailableError
from jetspec_engine.models import store
from jetspec_engine.records import Progress
from jetspec_engine.sglang_backend import backend, launch


def availability(monkeypatch, version, gpus):
    def find(name):
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", find)
    monkeypatch.setattr(backend, "count_gpus", lambda: gpus)
    return backend.SglangBackend().availability(ServeConfig())


@pytest.mark.parametrize(
    ("version", "gpus", "missing"),
    [
        (None, 1, "package sglang"),
        ("0.5.18", 1, "sglang 0.5.17, found 0.5.18"),
        ("0.5.17", 0, "a GPU with CUDA"),
    ],
)
def test_what_is_missing_is_named_and_serve_says_the_same(monkeypatch, version, gpus, missing):
    found = availability(monkeypatch, version, gpus)
    assert (found.is_available, found.missing) == (False, (missing,))
    assert found.hint
    with pytest.raises(UnavailableError, match=f"missing {missing}"):
        backend.SglangBackend().serve(ServeConfig(), lambda _: None)


def test_version_and_gpu_suffice(monkeypatch):
    assert availability(monkeypatch, "0.5.17", 2).is_available


def test_a_driver_that_is_not_there_shows_no_gpu(monkeypatch):
    def load(_):
        raise OSError("no such library")

    monkeypatch.setattr(backend.ctypes, "CDLL", load)
    assert backend.count_gpus() == 0


@pytest.fixture
def unreachable(monkeypatch):
    """A machine that could run it, where nothing may be pulled."""

    def pull(name, *_):
        raise AssertionError(f"{name} was pulled")

    monkeypatch.setattr(metadata, "version", lambda _: "0.5.17")
    monkeypatch.setattr(backend, "count_gpus", lambda: 1)
    monkeypatch.setattr(launch, "probe_free_memory", lambda: [1])
    monkeypatch.setattr(store, "pull_hub_model", pull)
    monkeypatch.setattr(store, "pull_entry", pull)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"device": "cuda:3"}, "device: cuda:3"),
        ({"host": "203.0.113.1"}, "cannot listen on"),
        ({}, "none comes with target org/huge"),
        ({"head": "no-such-head"}, "no-such-head"),
        ({"target": "smolm2-135m"}, "smolm2-135m.*no such model"),
    ],
)
def test_what_cannot_be_is_refused_before_a_target_is_pulled(unreachable, tmp_path, config, match):
    config = ServeConfig(engine="sglang", cache_dir=str(tmp_path), **{"target": "org/huge", "port": 0, **config})
    with pytest.raises((UnavailableError, ArtifactError), match=match):
        backend.SglangBackend().serve(config, lambda _: None)


def test_a_missing_target_is_pulled_and_its_progress_told(unreachable, monkeypatch, tmp_path):
    def pull(entry, cache_dir, on_progress):
        on_progress(Progress(label=f"downloading {entry.name}", done=1, total=2))
        raise UnavailableError("no network")

    events = []
    monkeypatch.setattr(store, "pull_entry", pull)
    with pytest.raises(UnavailableError, match="no network"):
        backend.SglangBackend().serve(ServeConfig(engine="sglang", cache_dir=str(tmp_path), port=0), events.append)
    assert [event.progress.label for event in events] == ["downloading smollm2-135m"]
