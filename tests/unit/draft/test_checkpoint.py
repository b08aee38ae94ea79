"""Heads on disk: what is written reads back, and every kind of damage is one line that names file and tensor."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from jetspec_engine.draft.checkpoint import load_head, read_head_config, save_head
from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.weight_files import INDEX_NAME, SINGLE_NAME
from jetspec_engine.errors import ArtifactError
from support.tiny_heads import head_document, tiny_head

PUBLIC_NAMES = {
    "fc.weight",
    "hidden_norm.weight",
    "norm.weight",
    *(
        f"layers.{layer}.{name}.weight"
        for layer in range(2)
        for name in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "self_attn.q_norm",
            "self_attn.k_norm",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "input_layernorm",
            "post_attention_layernorm",
        )
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    head = tiny_head()
    save_head(tmp_path / "head", head, head.config, dtype=torch.float32)
    return tmp_path / "head"


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / SINGLE_NAME)
    for name, value in changes.items():
        key = name.replace("__", ".")
        tensors.pop(key, None)
        if value is not None:
            tensors[key] = value
    save_file(tensors, folder / SINGLE_NAME)


def refusal(folder: Path) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        load_head(folder)
    assert "\n" not in caught.value.what
    assert str(folder) in caught.value.what
    return caught.value


def test_the_state_dict_has_exactly_the_public_names() -> None:
    assert set(tiny_head().state_dict()) == PUBLIC_NAMES


@pytest.mark.parametrize("max_shard_bytes", [10**9, 2000, 1])
def test_what_is_saved_loads_back(tmp_path: Path, max_shard_bytes: int) -> None:
    head = tiny_head()
    extra = {"training": {"steps": 5}}
    written = save_head(tmp_path, head, head.config, extra, dtype=torch.float32, max_shard_bytes=max_shard_bytes)
    shards = [path for path in written if path.suffix == ".safetensors"]
    assert (len(shards) == 1) is (max_shard_bytes == 10**9)
    assert all(len(load_file(path)) == 1 or path.stat().st_size < max_shard_bytes + 4000 for path in shards)
    loaded = load_head(tmp_path)
    assert loaded.config.extra["training"] == {"steps": 5}
    for name, value in head.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_saving_again_leaves_no_file_of_the_first_time(tmp_path: Path) -> None:
    head = tiny_head()
    save_head(tmp_path, head, head.config, max_shard_bytes=2000)
    save_head(tmp_path, head, head.config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", SINGLE_NAME]
    load_head(tmp_path)


def test_bfloat16_on_disk_is_converted(tmp_path: Path) -> None:
    head = tiny_head()
    save_head(tmp_path, head, head.config)
    loaded = load_head(tmp_path, dtype=torch.float32).state_dict()
    for name, value in head.state_dict().items():
        assert torch.equal(loaded[name], value.bfloat16().float())


def test_a_head_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    head = tiny_head()
    head.fc.weight[0, 0] = float("inf")
    with pytest.raises(ArtifactError, match=r"fc\.weight: not finite"):
        save_head(tmp_path / "new", head, head.config)
    assert not (tmp_path / "new").exists()


def test_case_20_a_missing_tensor(folder: Path) -> None:
    rewrite(folder, layers__1__mlp__up_proj__weight=None)
    assert refusal(folder).what == f"{folder}: layers.1.mlp.up_proj.weight: missing tensor, expected shape [24, 16]"


def test_case_20_an_unknown_tensor(folder: Path) -> None:
    rewrite(folder, lm_head__weight=torch.zeros(2, 2))
    assert "lm_head.weight: unknown tensor" in refusal(folder).what


def test_jetspec_plus_plus_tensors_are_recognised(folder: Path) -> None:
    rewrite(folder, hidden_dim_adapter__proj__weight=torch.zeros(2, 2))
    assert "JetSpec++" in refusal(folder).hint


def test_case_20_a_wrong_shape(folder: Path) -> None:
    rewrite(folder, fc__weight=torch.zeros(16, 48))
    assert refusal(folder).what.endswith("fc.weight: shape [16, 48], expected [16, 32] as config.json says")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn])
def test_case_20_a_wrong_dtype(folder: Path, dtype: torch.dtype) -> None:
    rewrite(folder, norm__weight=torch.zeros(16).to(dtype))
    assert "norm.weight: dtype" in refusal(folder).what


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_case_20_weights_that_are_not_finite(folder: Path, bad: float) -> None:
    weight = torch.zeros(16)
    weight[3] = bad
    rewrite(folder, hidden_norm__weight=weight)
    assert refusal(folder).what.endswith("hidden_norm.weight: 1 NaN or infinite values, expected none")


@pytest.mark.parametrize("keep", [0, 4, 8, 50, 1000, -1])
def test_case_20_a_truncated_file(folder: Path, keep: int) -> None:
    path = folder / SINGLE_NAME
    path.write_bytes(path.read_bytes()[:keep])
    assert SINGLE_NAME in refusal(folder).what


def _file(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HOSTILE = {
    "no JSON": _file(b"not json at all!"),
    "a list": _file([1, 2]),
    "header beyond the file": struct.pack("<Q", 10**6) + b"{}",
    "header of 2**63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "offsets beyond the file": _file({"fc.weight": ENTRY | {"data_offsets": [0, 10**12], "shape": [25 * 10**10]}}),
    "offsets backwards": _file({"fc.weight": ENTRY | {"data_offsets": [16, 0]}}, bytes(16)),
    "overlapping tensors": _file({"fc.weight": ENTRY, "norm.weight": ENTRY}, bytes(16)),
    "negative shape": _file({"fc.weight": ENTRY | {"shape": [-4]}}, bytes(16)),
    "shape that overflows": _file({"fc.weight": ENTRY | {"shape": [2**40, 2**40]}}, bytes(16)),
    "shape against offsets": _file({"fc.weight": ENTRY | {"shape": [5]}}, bytes(16)),
    "unknown dtype": _file({"fc.weight": ENTRY | {"dtype": "PICKLE"}}, bytes(16)),
    "bytes nobody owns": _file({"fc.weight": ENTRY}, bytes(64)),
    "not UTF-8": _file(b'{"\xff\xfe": 1}'),
    "deep nesting": _file(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_headers_are_refused(folder: Path, content: bytes) -> None:
    (folder / SINGLE_NAME).write_bytes(content)
    assert SINGLE_NAME in refusal(folder).what


def test_a_huge_header_is_not_read(folder: Path) -> None:
    with (folder / SINGLE_NAME).open("wb") as file:
        file.write(struct.pack("<Q", 90_000_000))
        file.truncate(100_000_000)
    assert "header of 90000000 bytes" in refusal(folder).what


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    head = tiny_head()
    save_head(tmp_path / "head", head, head.config, max_shard_bytes=4000)
    return tmp_path / "head"


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def edit_index(folder: Path, tensor: str, name: Any) -> None:
    index = json.loads((folder / INDEX_NAME).read_text())
    index["weight_map"][tensor] = name
    (folder / INDEX_NAME).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/file.safetensors",
        "..\\secret.safetensors",
        "C:\\secret.safetensors",
        ".hidden.safetensors",
        "model.bin",
        "",
        "a\x00.safetensors",
        "a\n.safetensors",
        7,
        None,
    ],
)
def test_an_index_cannot_lead_out_of_the_folder(sharded: Path, name: Any) -> None:
    outside = sharded.parent / "secret.safetensors"
    outside.write_bytes(shards(sharded)[0].read_bytes())
    edit_index(sharded, "fc.weight", name)
    assert "weight_map.fc.weight" in refusal(sharded).what


def test_an_index_that_names_a_missing_file(sharded: Path) -> None:
    edit_index(sharded, "fc.weight", "model-00009-of-00009.safetensors")
    assert "model-00009-of-00009.safetensors: No such file" in refusal(sharded).what


def test_an_index_that_names_the_wrong_file(sharded: Path) -> None:
    edit_index(sharded, "norm.weight", shards(sharded)[0].name)
    assert "norm.weight: missing, expected as model.safetensors.index.json says" in refusal(sharded).what


def test_a_tensor_in_two_files(sharded: Path) -> None:
    first, second, *_ = shards(sharded)
    save_file({**load_file(second), **load_file(first)}, second)
    assert "also in" in refusal(sharded).what


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', "{", '{"a": 1, "a": 2}'])
def test_a_bad_index(sharded: Path, content: str) -> None:
    (sharded / INDEX_NAME).write_text(content)
    assert INDEX_NAME in refusal(sharded).what


def test_pickled_weights_are_never_read(folder: Path) -> None:
    (folder / SINGLE_NAME).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    assert "pytorch_model.bin is not read" in refusal(folder).hint


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nowhere")
    assert "config.json: missing" in error.what


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"hidden_size": NaN}', b"[" * 100_000])
def test_a_config_that_is_not_json(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refusal(folder).what


def test_a_config_with_a_byte_order_mark_is_read(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(head_document()).encode())
    assert read_head_config(folder) == HeadConfig.from_mapping(head_document())


def test_remote_code_named_by_a_config_is_ignored(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(head_document(auto_map={"AutoModel": "evil.Model"})))
    (folder / "evil.py").write_text("raise SystemExit(1)")
    load_head(folder)
