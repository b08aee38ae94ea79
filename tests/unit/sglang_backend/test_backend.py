"""Whether SGLang can run here, by its metadata and CUDA's driver."""

from importlib import metadata

import pytest

from jetspec_engine.config import ServeConfig
from jetspec_engine.errors import UnavailableError
from jetspec_engine.sglang_backend import backend


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
