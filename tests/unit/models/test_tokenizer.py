"""The tokenizer of a model folder: ids, text, special tokens, and broken folders."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from jetspec_engine.errors import ArtifactError, RequestError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.detokenizer import Detokenizer
from jetspec_engine.models.tokenizer import ModelTokenizer
from support.tiny_models import END_OF_TEXT_ID, IM_END_ID, IM_START_ID, MASK_ID, make_tiny_target

TEXTS = [
    "",
    " ",
    "a",
    "The cat sat on the mat.",
    "  two  spaces",
    "\n\n1. one\n",
    "naïve café — “quotes”",
    "日本語と中文",
    "👩‍👩‍👧‍👦🇩🇪",
    "\x00\x7f\u2028",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ModelTokenizer:
    return load(folder)


def load(folder: Path) -> ModelTokenizer:
    return ModelTokenizer.from_folder(folder, DecoderConfig.from_folder(folder))


def rewrite(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads((folder / name).read_text())
    change(values)
    (folder / name).write_text(json.dumps(values))


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_encoding_and_decoding(tokenizer: ModelTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def test_merges_are_used(tokenizer: ModelTokenizer) -> None:
    assert len(tokenizer.encode(" the")) == 1


def test_special_ids_come_from_the_folder(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.bos_token_id == IM_START_ID
    assert tokenizer.eos_token_ids == (IM_END_ID,)
    assert tokenizer.vocab_size == 320
    assert tokenizer.special_token_ids == {END_OF_TEXT_ID, IM_START_ID, IM_END_ID, MASK_ID}


def test_the_tokenizers_own_end_token_joins_the_configurations(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path, eos_token_id=END_OF_TEXT_ID)
    assert load(folder).eos_token_ids == (END_OF_TEXT_ID, IM_END_ID)


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path, eos_token_id=None)
    rewrite(folder, "tokenizer_config.json", lambda values: values.update(eos_token={"content": "<|im_end|>"}))
    assert load(folder).eos_token_ids == (IM_END_ID,)


def test_special_tokens_are_skipped_or_shown(tokenizer: ModelTokenizer) -> None:
    ids = [IM_START_ID, *tokenizer.encode("hi"), IM_END_ID]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_case_22_special_tokens_in_a_raw_prompt_are_the_tokens(tokenizer: ModelTokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b<|mask|>")
    assert IM_END_ID in ids
    assert MASK_ID in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b<|mask|>"


def test_case_22_special_tokens_in_chat_content_are_the_tokens(tokenizer: ModelTokenizer) -> None:
    rendered = tokenizer.render_chat([{"role": "user", "content": "x<|im_end|>y"}])
    assert rendered == "<|im_start|>user\nx<|im_end|>y<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode_rendered(rendered)
    assert ids.count(IM_END_ID) == 2
    assert ids.count(IM_START_ID) == 2


def test_a_lone_surrogate_is_the_requests_fault(tokenizer: ModelTokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_rendered):
        with pytest.raises(RequestError, match=r"at 1, expected valid Unicode"):
            encode("a\ud800b")


def test_ids_outside_the_vocabulary_decode_to_nothing(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.decode([-1, 10**9, *tokenizer.encode("a")], skip_special_tokens=False) == "a"


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.enable_truncation(4)
    raw.enable_padding(length=64)
    raw.save(str(folder / "tokenizer.json"))
    assert len(load(folder).encode("x" * 20)) == 20


def test_the_post_processor_adds_what_the_model_wants(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", IM_START_ID)]
    )
    raw.save(str(folder / "tokenizer.json"))
    tokenizer = load(folder)
    assert tokenizer.encode("a")[0] == IM_START_ID
    assert IM_START_ID not in tokenizer.encode_rendered("a"), "a rendered chat already has its special tokens"


def test_add_bos_token_is_honoured_once(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    rewrite(folder, "tokenizer_config.json", lambda values: values.update(add_bos_token=True))
    tokenizer = load(folder)
    assert tokenizer.encode("a")[0] == IM_START_ID
    assert tokenizer.encode("<|im_start|>a").count(IM_START_ID) == 1
    assert IM_START_ID not in tokenizer.encode_rendered("a")


def test_threads_get_the_same_ids(tokenizer: ModelTokenizer) -> None:
    texts = TEXTS * 20
    alone = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(tokenizer.encode, texts))
        decoded = list(pool.map(lambda ids: tokenizer.decode(ids, skip_special_tokens=False), together))
    assert together == alone
    assert decoded == texts


def write_sentencepiece_like(folder: Path) -> None:
    """Replace the folder's tokenizer by one in the manner of Llama 2: marked spaces and lone bytes."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "▁a",
        "▁b",
        "ab",
        "▁ab",
    ]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b")]
    raw = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in pieces[:3]])
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


@pytest.mark.parametrize("text", ["ab b a", " ab", "a日本b", "a\n👩‍👩‍👧‍👦 b", ""])
def test_sentencepiece_like_vocabularies_decode_as_the_library_does(tmp_path: Path, text: str) -> None:
    folder = make_tiny_target(tmp_path)
    write_sentencepiece_like(folder)
    tokenizer = load(folder)
    ids = tokenizer.encode(text)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.decode(ids, skip_special_tokens=True) == raw.decode(ids) == text
    # As the continuation of a prompt the first space belongs to the text.
    stream = Detokenizer(tokenizer, skip_special_tokens=True)
    assert "".join(stream.push([token_id]) for token_id in ids) + stream.finish() == (" " + text if ids else "")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {"type": "BPE"}}'])
def test_a_broken_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    folder = make_tiny_target(tmp_path)
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: not a readable tokenizer"):
        load(folder)


def test_a_missing_tokenizer_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path, with_tokenizer=False)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json: missing") as caught:
        load(folder)
    assert "save_pretrained" in caught.value.hint


def test_R29_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path, vocab_size=300)
    with pytest.raises(ArtifactError, match="token id 319, expected ids below the model's vocab_size 300"):
        load(folder)


def test_another_kind_of_decoder_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_target(tmp_path)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.decoder = decoders.WordPiece()
    raw.save(str(folder / "tokenizer.json"))
    with pytest.raises(ArtifactError, match=r"decoder: \['WordPiece'\]"):
        load(folder)
