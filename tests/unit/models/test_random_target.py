"""Random targets: the same bits every time, made once, found by name."""

from pathlib import Path

import pytest

from jetspec_engine.errors import ArtifactError
from jetspec_engine.models import store
from jetspec_engine.models.random_names import RANDOM_FAMILIES, random_folder
from jetspec_engine.models.random_target import END_OF_TEXT_ID, IM_END_ID
from jetspec_engine.models.tokenizer import ModelTokenizer


@pytest.mark.parametrize("family", RANDOM_FAMILIES)
def test_a_random_target_is_made_once_and_always_the_same(family: str, tmp_path: Path) -> None:
    name = f"random:{family}"
    first, second = (store.pull(name, tmp_path / cache, lambda _: None) for cache in ("one", "two"))
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    made_at = (first / "config.json").stat().st_mtime_ns
    assert store.pull(name, tmp_path / "one", lambda _: None) == first == store.resolve(name, tmp_path / "one")
    assert (first / "config.json").stat().st_mtime_ns == made_at
    assert [path.name for path in (tmp_path / "one").iterdir()] == [first.name]


def test_names_that_are_none_are_refused_and_what_is_not_made_says_how(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="random:qwen3-nest: no such family") as caught:
        store.pull("random:qwen3-nest", tmp_path, lambda _: None)
    assert caught.value.hint == "did you mean qwen3-next?"
    with pytest.raises(ArtifactError, match="not in the cache") as caught:
        store.resolve("random:qwen3-next", tmp_path)
    assert caught.value.hint == "jetspec models pull random:qwen3-next"
    assert not random_folder("random:qwen3-next", tmp_path).exists()


def test_its_tokenizer_gives_one_id_a_byte(tmp_path: Path) -> None:
    from jetspec_engine.models.config import DecoderConfig

    folder = store.pull("random:qwen3.5", tmp_path, lambda _: None)
    tokenizer = ModelTokenizer.from_folder(folder, DecoderConfig.from_folder(folder))
    ids = tokenizer.encode("Grüße 日")
    assert len(ids) == len("Grüße 日".encode())
    assert tokenizer.decode(ids, skip_special_tokens=False) == "Grüße 日"
    chat = tokenizer.encode_rendered(tokenizer.render_chat([{"role": "user", "content": "a"}]))
    assert IM_END_ID in chat
    assert END_OF_TEXT_ID not in chat
