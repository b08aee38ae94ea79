"""A tiny random target and head on disk that belong together, and an engine assembled from them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from jetspec_engine.config import ServeConfig
from jetspec_engine.draft.checkpoint import save_head
from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.embedded.assembly import build_engine
from jetspec_engine.models.random_target import IM_END_ID, MASK_ID, write_random_target
from support.engine_runs import Rig
from support.tiny_heads import head_document, tiny_head
from support.tiny_models import make_tiny_target

CONTEXT = 128


def make_tiny_pair(folder: Path, **head_changes: Any) -> dict[str, str]:
    """Write ``folder/target`` and ``folder/head`` (4 target layers, D 7) and return them as ServeConfig options."""
    target = make_tiny_target(folder / "target", num_layers=4, max_position_embeddings=CONTEXT)
    values = json.loads((target / "config.json").read_text())
    shared = {key: values[key] for key in ("hidden_size", "vocab_size", "bos_token_id", "eos_token_id")}
    changes = {"max_position_embeddings": CONTEXT, "block_size": 8, **shared, **head_changes}
    config = HeadConfig.from_mapping(head_document(**changes))
    save_head(folder / "head", tiny_head(config), config)
    return {"target": str(target), "head": str(folder / "head"), "cache_dir": str(folder / "cache")}


def make_hybrid_pair(folder: Path, family: str = "qwen3.5", **head_changes: Any) -> dict[str, str]:
    """Write a random target of a family beyond the dense ones, and a public-format head with random weights for it."""
    (folder / "target").mkdir(parents=True)
    target = write_random_target(folder / "target", family, max_position_embeddings=CONTEXT)
    changes = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size, "block_size": 8}
    changes |= {"bos_token_id": None, "eos_token_id": IM_END_ID, "dflash_config__mask_token_id": MASK_ID}
    changes |= {"max_position_embeddings": CONTEXT, **head_changes}
    config = HeadConfig.from_mapping(head_document(**changes))
    save_head(folder / "head", tiny_head(config), config)
    return {"target": str(folder / "target"), "head": str(folder / "head"), "cache_dir": str(folder / "cache")}


def favour(target_folder: Path, token_ids: range) -> None:
    """Shrink the output rows of all other tokens, so that target and head, both random, agree now and then."""
    path = target_folder / "model.safetensors"
    tensors = load_file(path)
    name = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    rows = torch.full((len(tensors[name]), 1), 0.02)
    rows[list(token_ids)] = 1.0
    tensors[name] = (tensors[name].float() * rows).to(tensors[name].dtype)
    save_file(tensors, path, metadata={"format": "pt"})


@contextmanager
def assembled_rig(pair: dict[str, str], **config: Any) -> Iterator[Rig]:
    """Assemble an engine, and check on the way out that its pages came back."""
    engine = build_engine(ServeConfig(**{**pair, "device": "cpu", **config}), lambda progress: None)
    pool: Any = engine._pool
    try:
        yield Rig(engine, engine._target, engine._drafter, pool)  # type: ignore[arg-type]
    finally:
        engine.close()
    assert pool.num_free_pages == pool.num_pages
