"""A head is refused for any target but its own."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.pair import check_pair
from jetspec_engine.errors import ArtifactError
from support.tiny_heads import head_document

HEAD = HeadConfig.from_mapping(head_document())


@dataclass(frozen=True)
class Facts:
    vocab_size: int = 50
    hidden_size: int = 16
    num_layers: int = 4
    max_position_embeddings: int = 64
    bos_token_id: int | None = 1
    eos_token_ids: tuple[int, ...] = (2, 7)


def test_R29_a_pair_that_belongs_together_is_accepted() -> None:
    report = check_pair(HEAD, Facts())
    assert (report.max_seq_len, report.limited_by, report.notice) == (64, "target", "")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"hidden_size": 32}, "hidden_size: 16, expected the target's 32"),
        ({"vocab_size": 51}, "vocab_size: 50, expected the target's 51"),
        ({"num_layers": 5}, "num_target_layers: 4, expected the target's 5"),
        ({"bos_token_id": 0}, "bos_token_id: 1, expected the target's 0"),
        ({"eos_token_ids": (7, 8)}, "eos_token_id: 2, expected one of the target's [7, 8]"),
        ({"eos_token_ids": (8,)}, "eos_token_id: 2, expected one of the target's [8]"),
    ],
)
def test_R29_a_head_of_another_target_is_refused(facts: dict[str, Any], expected: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        check_pair(HEAD, Facts(**facts), where="head/config.json")
    assert caught.value.what == f"head/config.json: {expected}"
    assert caught.value.hint


def test_R29_one_strange_end_beside_a_right_one_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"eos_token_id: 9, expected one of the target's \[2, 7\]"):
        check_pair(replace(HEAD, eos_token_ids=(2, 9)), Facts())
    check_pair(replace(HEAD, eos_token_ids=(7,)), Facts())


def test_R29_a_config_made_without_the_file_checks_is_checked_against_the_target() -> None:
    for bad in (replace(HEAD, target_layer_ids=(0, 4)), replace(HEAD, mask_token_id=50)):
        with pytest.raises(ArtifactError):
            check_pair(bad, Facts())


def test_R29_a_head_that_says_nothing_of_bos_and_eos_is_accepted() -> None:
    check_pair(replace(HEAD, bos_token_id=None, eos_token_ids=()), Facts())
    check_pair(HEAD, Facts(bos_token_id=None, eos_token_ids=()))


def test_case_19_a_shorter_head_limits_the_served_context_and_says_so() -> None:
    report = check_pair(replace(HEAD, max_position_embeddings=40), Facts())
    assert (report.max_seq_len, report.limited_by) == (40, "head")
    assert "40" in report.notice
    assert check_pair(HEAD, Facts(max_position_embeddings=20)).max_seq_len == 20


def tokenizer(folder: Path, *, vocab: Any = None, merges: Any = None, added: Any = None) -> Path:
    folder.mkdir(exist_ok=True)
    document = {
        "truncation": str(folder),
        "model": {"vocab": vocab or {"a": 0, "b": 1, "ab": 2}, "merges": merges or ["a b"]},
        "added_tokens": added or [{"id": 3, "content": "<mask>"}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def compare(head: Path, target: Path) -> str:
    try:
        check_pair(HEAD, Facts(), head_folder=head, target_folder=target)
    except ArtifactError as error:
        return error.what
    return ""


def test_R29_the_same_tokenizer_is_accepted_whatever_its_file_looks_like(tmp_path: Path) -> None:
    target = tokenizer(tmp_path / "target")
    assert compare(tokenizer(tmp_path / "head", merges=[["a", "b"]]), target) == ""
    assert compare(tokenizer(tmp_path / "head", vocab={"ab": 2, "b": 1, "a": 0}), target) == ""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"vocab": {"a": 1, "b": 0, "ab": 2}}, "token 'a' is 1, expected 0"),
        ({"vocab": {"a": 0, "b": 1, "ba": 2}}, "token 'ba' is 2, expected None"),
        ({"vocab": {"a": 0, "b": 1}}, "3 tokens, expected 4"),
        ({"merges": ["b a"]}, "merges differ"),
        ({"added": [{"id": 4, "content": "<mask>"}]}, "token '<mask>' is 4, expected 3"),
    ],
)
def test_case_20_another_tokenizer_is_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    message = compare(tokenizer(tmp_path / "head", **changes), tokenizer(tmp_path / "target"))
    assert expected in message
    assert str(tmp_path / "head" / "tokenizer.json") in message


def test_a_head_without_a_tokenizer_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    assert compare(tmp_path / "head", tokenizer(tmp_path / "target")) == ""


def test_a_target_whose_tokenizer_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    assert "missing" in compare(tokenizer(tmp_path / "head"), tmp_path / "target")


def test_a_decoder_config_has_the_facts_asked_for() -> None:
    from jetspec_engine.models.config import DecoderConfig

    asked = {"vocab_size", "hidden_size", "num_layers", "max_position_embeddings", "bos_token_id", "eos_token_ids"}
    assert asked <= set(DecoderConfig.__dataclass_fields__)
