"""The incremental detokenizer against whole decoding, on random ids (case 23)."""

import itertools
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.detokenizer import Detokenizer
from jetspec_engine.models.tokenizer import ModelTokenizer
from support.tiny_models import TINY_VOCAB_SIZE, make_tiny_target

IDS = st.lists(st.integers(0, TINY_VOCAB_SIZE - 1), max_size=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ModelTokenizer:
    return ModelTokenizer.from_folder(folder, DecoderConfig.from_folder(folder))


@pytest.fixture(scope="module")
def library(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def stream(tokenizer: ModelTokenizer, pieces: list[list[int]], skip: bool) -> tuple[list[str], str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [detokenizer.push(piece) for piece in pieces], detokenizer.finish()


@settings(max_examples=300, deadline=None)
@given(ids=IDS, skip=st.booleans(), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_case_23_deltas_join_to_the_whole_text_however_rounds_cut_it(
    tokenizer: ModelTokenizer, library: Tokenizer, ids: list[int], skip: bool, cuts: list[int]
) -> None:
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    pieces = [ids[start:end] for start, end in itertools.pairwise(bounds)]
    deltas, rest = stream(tokenizer, pieces, skip)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(deltas) + rest == whole
    assert whole == library.decode(ids, skip_special_tokens=skip), "the tokenizers library must agree"


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_case_23_valid_text_never_shows_a_replacement_character(tokenizer: ModelTokenizer, text: str) -> None:
    deltas, rest = stream(tokenizer, [[token_id] for token_id in tokenizer.encode(text)], False)
    assert "".join(deltas) == text, "nothing of a complete text is left to finish"
    assert rest == ""
    assert "".join(deltas).count("\ufffd") == text.count("\ufffd")


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦 family", "日本語のテキスト", "🇩🇪🇫🇷", "a\u0301e\u0308", "नमस्ते"])
def test_case_23_emoji_and_cjk_arrive_whole(tokenizer: ModelTokenizer, text: str) -> None:
    deltas, rest = stream(tokenizer, [[token_id] for token_id in tokenizer.encode(text)], False)
    assert "".join(deltas) == text
    assert rest == ""
    assert all("\ufffd" not in delta for delta in deltas)
    assert any(delta == "" for delta in deltas), "the partner: some tokens end within a character"


def test_an_unfinished_character_shows_once_at_the_end(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("日")[:-1]
    deltas, rest = stream(tokenizer, [[token_id] for token_id in ids], False)
    assert ("".join(deltas), rest) == ("", "\ufffd")


def test_bytes_that_never_complete_are_not_held_back(tokenizer: ModelTokenizer) -> None:
    continuation = next(
        i for i in range(TINY_VOCAB_SIZE) if tokenizer.token_bytes(i, skip_special_tokens=False) == b"\x98"
    )
    deltas, _ = stream(tokenizer, [[continuation]] * 50, False)
    assert "".join(deltas) == "\ufffd" * 50
    assert all(deltas)


def test_the_cost_of_a_token_does_not_grow_with_the_text(tokenizer: ModelTokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True)

    def seconds(pushes: int) -> float:
        start = time.perf_counter()
        for _ in range(pushes):
            detokenizer.push((200,))
        return time.perf_counter() - start

    early = min(seconds(2000) for _ in range(5))
    seconds(200_000)
    late = min(seconds(2000) for _ in range(5))
    assert late < 10 * early
