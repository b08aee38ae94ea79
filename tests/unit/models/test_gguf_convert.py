"""A GGUF file becomes a Hugging Face folder with the same numbers and the tokenizer it names."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.gguf_convert import convert, rename, shortest, unpermute
from jetspec_engine.models.tokenizer import ModelTokenizer
from jetspec_engine.models.weights import load_weights
from jetspec_engine.records import Progress
from support.tiny_gguf import tiny_gguf_config, write_tiny_gguf


def convert_tiny(
    folder: Path, *, is_tied: bool = True
) -> tuple[DecoderConfig, dict[str, torch.Tensor], list[Progress]]:
    config = tiny_gguf_config(folder / "source", is_tied=is_tied)
    held = write_tiny_gguf(folder / "tiny.gguf", config)
    (folder / "made").mkdir()
    reports: list[Progress] = []
    convert(folder / "tiny.gguf", folder / "made", reports.append)
    return config, held, reports


@pytest.mark.parametrize("is_tied", [True, False])
def test_converted_weights_are_the_dequantised_ones(tmp_path: Path, is_tied: bool) -> None:
    _, held, reports = convert_tiny(tmp_path, is_tied=is_tied)
    config = DecoderConfig.from_folder(tmp_path / "made")
    loaded = load_weights(tmp_path / "made", config, dtype=torch.bfloat16)
    assert loaded.keys() == held.keys()
    assert all(torch.equal(loaded[name], held[name].to(torch.bfloat16)) for name in held)
    assert config.is_embedding_tied is is_tied
    assert [report.done for report in reports] == list(range(1, len(held) + 1))
    assert {report.total for report in reports} == {len(held)}


def test_the_configuration_survives(tmp_path: Path) -> None:
    source, _, _ = convert_tiny(tmp_path)
    assert DecoderConfig.from_folder(tmp_path / "made") == source
    assert json.loads((tmp_path / "made" / "generation_config.json").read_text())["eos_token_id"] == 2


def test_the_tokenizer_survives_with_every_digit_alone(tmp_path: Path) -> None:
    convert_tiny(tmp_path)
    made = ModelTokenizer.from_folder(tmp_path / "made", DecoderConfig.from_folder(tmp_path / "made"))
    source = Tokenizer.from_file(str(tmp_path / "tokenizer" / "tokenizer.json"))
    for text in ("The cat sat on the mat.", "日本語 🇩🇪", "<|im_start|>user\nhi<|im_end|>", "  two"):
        assert made.encode(text) == source.encode(text).ids
    # "\n\n" before a digit is one piece only where the digit was split off first.
    assert len(made.encode("\n\n1")) == 2
    assert len(source.encode("\n\n1").ids) == 3
    assert made.render_chat([{"role": "user", "content": "hi"}]).startswith("<|im_start|>user\nhi")
    assert made.eos_token_ids == (2,)


def test_rows_are_put_back_in_order() -> None:
    rows = torch.arange(12).view(12, 1)  # two heads of 6, as llama.cpp keeps them
    assert unpermute(rows, 6).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_names_and_numbers() -> None:
    assert rename("blk.12.ffn_down.weight") == "layers.12.mlp.down_proj.weight"
    assert rename("output_norm.weight") == "norm.weight"
    assert rename("rope_freqs.weight") == "rope_freqs.weight"
    assert shortest(9.999999747378752e-06) == 1e-5


@pytest.mark.parametrize("keep", [0, 10, 3000, -5000])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    config = tiny_gguf_config(tmp_path / "source")
    write_tiny_gguf(tmp_path / "tiny.gguf", config)
    content = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(content[:keep])
    with pytest.raises(ArtifactError, match=r"tiny\.gguf"):
        convert(tmp_path / "tiny.gguf", tmp_path, lambda _: None)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (b"smollm", b"llama3", "tokenizer.ggml.pre"),
        (b"gpt2", b"bert", "tokenizer.ggml.model"),
        (b"blk.1.ffn_up.weight", b"blk.7.ffn_up.weight", r"blk\.7\.ffn_up\.weight"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, old: bytes, new: bytes, named: str) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", tiny_gguf_config(tmp_path / "source"))
    content = (tmp_path / "tiny.gguf").read_bytes()
    assert content.count(old) == 1
    (tmp_path / "tiny.gguf").write_bytes(content.replace(old, new))
    with pytest.raises(ArtifactError, match=named):
        convert(tmp_path / "tiny.gguf", tmp_path, lambda _: None)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", tiny_gguf_config(tmp_path / "source"))
    content = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(content.replace(b"llama", b"gemma", 2).replace(b"gemma.", b"llama."))
    with pytest.raises(ArtifactError, match=r"general\.architecture: 'gemma', expected llama"):
        convert(tmp_path / "tiny.gguf", tmp_path, lambda _: None)
