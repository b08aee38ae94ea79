"""``jetspec doctor`` and ``jetspec models``."""

from pathlib import Path

import pytest

from jetspec_engine import registry
from jetspec_engine.errors import ArtifactError
from jetspec_engine.records import Availability, Progress


class Store:
    """Two models, one of them here."""

    def list(self, cache_dir):
        return [
            {"name": "one", "kind": "target", "is_present": True, "size_bytes": 272_600_000, "licence": "Apache-2.0"},
            {"name": "two", "kind": "head", "is_present": False, "size_bytes": None, "licence": None},
        ]

    def pull(self, name, cache_dir, on_progress):
        if name != "one":
            raise ArtifactError(f"model {name!r}: no such model", hint="did you mean one?")
        for done in (0, 1, 2, 2):
            on_progress(Progress(label="downloading", done=done, total=2))
        return Path(cache_dir) / name

    def inspect(self, target, head, cache_dir):
        return {"target": {"name": target, "rope_theta": 1e5}, "head": {"name": head, "causal": True, "empty": {}}}


class Able:
    def availability(self, config):
        return Availability(is_available=True)


class Unable:
    def availability(self, config):
        return Availability(is_available=False, missing=("package torch",), hint="pip install it")


@pytest.fixture(autouse=True)
def scripted(monkeypatch, tmp_path):
    monkeypatch.setenv("JETSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(registry, "MODEL_STORE", f"{__name__}:Store")
    monkeypatch.setitem(registry.BACKENDS, "embedded", f"{__name__}:Able")
    monkeypatch.setitem(registry.BACKENDS, "sglang", f"{__name__}:Unable")


def test_R06_doctor_says_what_can_run_and_what_is_missing(jetspec, tmp_path):
    result = jetspec("doctor")
    assert result.code == 0
    for words in ("can run: yes", "missing: package torch", "hint: pip install it", "dtype: ", str(tmp_path)):
        assert words in result.out


def test_R13_doctor_reckons_the_tree_states_of_a_published_shape_and_of_a_target(jetspec, tmp_path):
    from jetspec_engine.models.random_target import make_random_target

    make_random_target("random:qwen3.5", tmp_path)
    result = jetspec("doctor", "--target", "random:qwen3.5")
    lines = result.out[result.out.index("tree states") :].splitlines()
    assert [line.strip() for line in lines[1:6]] == [
        "Qwen3.6-35B-A3B",
        "recurrent layers: 30",
        "sequence: 64.4 MB",
        "tree of 64 nodes: 363.3 MB",
        "if the states of all 64 nodes were kept: 4.0 GB",
    ]
    assert lines[6].strip() == "random:qwen3.5"
    assert "random:none: no such family" in jetspec("doctor", "--target", "random:none").out


def test_R06_doctor_exits_3_when_nothing_can_run(jetspec, monkeypatch):
    monkeypatch.setitem(registry.BACKENDS, "embedded", f"{__name__}:Unable")
    result = jetspec("doctor", "--format", "json")
    assert result.code == 3
    assert result.document["can_run"] is False
    assert result.document["engines"]["embedded"]["missing"] == ["package torch"]


def test_doctor_takes_a_pair_only_to_measure_it(jetspec):
    result = jetspec("doctor", "--head", "x")
    assert (result.code, result.err) == (
        2,
        "error: --head: only together with --measure\n\nhint: jetspec doctor --measure\n",
    )


def test_R21_doctor_shows_the_callers_devices(jetspec, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert jetspec("doctor", "--format", "json").document["system"]["cuda_visible_devices"] == "3"


def test_doctor_tells_a_broken_store_apart_from_a_broken_machine(jetspec, monkeypatch):
    def list_models(self, cache_dir):
        raise ArtifactError("cache: unreadable", hint="look")

    monkeypatch.setattr(Store, "list", list_models)
    result = jetspec("doctor", "--format", "json")
    assert result.code == 0
    assert result.document["models"]["problem"] == "cache: unreadable"


@pytest.mark.parametrize(
    ("features", "devices", "expected"),
    [
        (["avx512_bf16"], [], "bfloat16"),
        (["amx_bf16"], [], "bfloat16"),
        (["avx2"], [], "float32"),
        ([], [1], "bfloat16"),
    ],
)
def test_the_expected_dtype(features, devices, expected):
    from jetspec_cli.serving.checkup import expected_dtype

    assert expected_dtype(features, {"cuda_devices": devices}) == expected


def test_models_list(jetspec, tmp_path):
    result = jetspec("models", "list")
    assert result.code == 0
    assert result.out.splitlines()[1].split() == ["one", "target", "yes", "272.6", "MB", "Apache-2.0"]
    assert result.out.splitlines()[2].split() == ["two", "head", "no"]
    assert len(jetspec("models", "list", "--format", "json").document["models"]) == 2


def test_models_pull_prints_the_folder(jetspec, tmp_path):
    result = jetspec("models", "pull", "one")
    assert result.out == f"{tmp_path / 'one'}\n"
    # No terminal here: how far it is, in few lines.
    assert result.err == "downloading: 0 %\ndownloading: 50 %\ndownloading: 100 %\n"
    assert jetspec("models", "pull", "one", "--format", "json").document["path"] == str(tmp_path / "one")


def test_no_such_model_is_4(jetspec):
    result = jetspec("models", "pull", "oen")
    assert (result.code, result.err) == (4, "error: model 'oen': no such model\n\nhint: did you mean one?\n")


def test_models_inspect(jetspec):
    result = jetspec("models", "inspect", "--target", "one", "--head", "two")
    assert result.code == 0
    assert "  causal: yes" in result.out
    assert "  rope theta: 100000" in result.out
    assert jetspec("models", "inspect", "--format", "json").document["head"]["name"] == "auto"
