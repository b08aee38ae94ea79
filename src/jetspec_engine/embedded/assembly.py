"""Puts an embedded engine together: finds the models, loads them, sizes the caches, chooses device and dtype.

The one place that knows every part's constructor. Knows nothing of HTTP.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from jetspec_engine import __version__
from jetspec_engine.config import ServeConfig, check_integer, check_keys
from jetspec_engine.draft.checkpoint import load_head
from jetspec_engine.draft.head import DraftHead
from jetspec_engine.draft.head_drafter import HeadDrafter
from jetspec_engine.draft.scripted import STAND_INS
from jetspec_engine.embedded.delta_room import check_room, pool_for, state_notes
from jetspec_engine.embedded.device import pick_device, pick_dtype
from jetspec_engine.embedded.engine import EmbeddedEngine
from jetspec_engine.embedded.memory import CacheSize, size_of_cache, slot_bytes
from jetspec_engine.embedded.own_thread import run_apart
from jetspec_engine.embedded.pages import PagePool
from jetspec_engine.embedded.pair import AUTO_HEAD, PairStore, resolve_head, resolve_pair
from jetspec_engine.embedded.target import DecoderTarget
from jetspec_engine.embedded.traffic import round_bytes
from jetspec_engine.errors import ConfigError, EngineError
from jetspec_engine.models.config import DecoderConfig
from jetspec_engine.models.store import check_name
from jetspec_engine.models.tokenizer import ModelTokenizer
from jetspec_engine.models.weights import load_weights
from jetspec_engine.records import GenerateRequest, Progress, SamplingParams, StepEvent
from jetspec_engine.tree.rules import BUILDERS

# On a CPU 64 rows run within 3 % of the speed of 128, and running requests wait half as long between rounds.
PREFILL_CHUNK = {"cpu": 64, "cuda": 512}
STAND_IN_DEPTH = 15
MAX_STAND_IN_DEPTH = 256
WARM_UP_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Models:
    """What was found: the target's folder and configuration, the head if one drafts, and the context served."""

    folder: Path
    config: DecoderConfig
    head: DraftHead | None
    head_folder: Path | None
    max_seq_len: int
    notes: tuple[str, ...]


def build_engine(config: ServeConfig, on_progress: Callable[[Progress], None]) -> EmbeddedEngine:
    """Load everything and return a running, warm engine.

    Args:
        config: what to serve. ``drafter_options`` of a stand-in may hold ``depth`` (default 15) beside its own keys.
        on_progress: told of pulls and of what is being loaded.

    Raises:
        ConfigError: a drafter option or context length that cannot be.
        UnavailableError: no such device, or a model that has to be downloaded and cannot be.
        ArtifactError: a model that cannot be loaded, or a pair that does not belong together.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    models = find_models(config, device, dtype, on_progress)
    # Before the weights, which may be many gigabytes.
    tokenizer = ModelTokenizer.from_folder(models.folder, models.config)
    on_progress(Progress(label=f"loading {config.target} in {_name(dtype)} on {device}", done=0, total=0))
    a_slot = run_apart(lambda: slot_bytes(models.config, device, config.max_budget))
    cache = plan_cache(config, models, device, a_slot, config.max_budget)
    pool = PagePool(cache.num_pages, config.page_size)
    check_room(
        config,
        models.config,
        device,
        dtype,
        lambda budget: plan_cache(config, models, device, a_slot, budget).num_pages * config.page_size * a_slot,
    )
    target, drafter = run_apart(lambda: load_models(config, models, pool.num_slots, device, dtype))
    engine = EmbeddedEngine(
        target=target,
        drafter=drafter,
        tokenizer=tokenizer,
        pool=pool_for(config, models.config, target, pool),
        builders=BUILDERS,
        config=config,
        max_cached_pages=cache.max_cached_pages,
        prefill_chunk=PREFILL_CHUNK[device.type],
        facts=describe(config, models, target),
    )
    try:
        on_progress(Progress(label="warming up", done=0, total=0))
        warm_up(engine, target.vocab_size)
    except BaseException:
        engine.close()
        raise
    return engine


def find_models(
    config: ServeConfig, device: torch.device, dtype: torch.dtype, on_progress: Callable[[Progress], None]
) -> Models:
    """Make the models present, check that they belong together and load the head."""
    cache_dir = Path(config.cache_dir)
    store = PairStore()
    if config.drafter != "head":
        folder = store.pull(config.target, cache_dir, on_progress)
        decoder = DecoderConfig.from_folder(folder)
        length, notes = served_length(config, decoder.max_position_embeddings, "")
        return Models(folder=folder, config=decoder, head=None, head_folder=None, max_seq_len=length, notes=notes)
    check_keys("drafter_options", config.drafter_options, ())
    # The head first: a target may be many gigabytes, and "auto" may have none for it.
    check_name(config.target, cache_dir)
    if config.head == AUTO_HEAD:
        resolve_head(config.head, config.target, cache_dir)
    else:
        store.pull(config.head, cache_dir, on_progress)
    store.pull(config.target, cache_dir, on_progress)
    pair = resolve_pair(config.target, config.head, cache_dir)
    head_folder = pair.head_folder
    length, notes = served_length(config, pair.report.max_seq_len, pair.report.notice)
    return Models(
        folder=pair.target_folder,
        config=pair.target,
        head=run_apart(lambda: load_head(head_folder, dtype=dtype, device=str(device))),
        head_folder=head_folder,
        max_seq_len=length,
        notes=notes,
    )


def served_length(config: ServeConfig, longest: int, notice: str) -> tuple[int, tuple[str, ...]]:
    """Return the context length to serve, and what to say about it (case 19)."""
    if config.max_seq_len is None:
        return longest, (notice,) if notice else ()
    if config.max_seq_len > longest:
        raise ConfigError(
            f"max_seq_len: {config.max_seq_len}, expected at most {longest}, what the models were made for"
        )
    return config.max_seq_len, ()


def plan_cache(
    config: ServeConfig, models: Models, device: torch.device, bytes_a_slot: int, max_budget: int
) -> CacheSize:
    """Size the pool for full-length sequences with the rows of the largest round the server may switch to."""
    depth = models.head.config.depth if models.head is not None else _stand_in_depth(config)
    return size_of_cache(
        bytes_a_slot,
        device,
        page_size=config.page_size,
        sequence_slots=models.max_seq_len + max(max_budget, depth + 1),
        max_running=config.max_running,
    )


def load_models(
    config: ServeConfig, models: Models, num_slots: int, device: torch.device, dtype: torch.dtype
) -> tuple[DecoderTarget, Any]:
    """Load the target's weights and make the drafter that shares its slots, embedding and LM head."""
    weights = own_small_weights(load_weights(models.folder, models.config, dtype=dtype, device=device))
    embedding = weights["embed_tokens.weight"]
    target = DecoderTarget(
        models.config,
        weights,
        num_slots=num_slots,
        max_seq_len=models.max_seq_len,
        max_nodes=config.max_budget,
        taps=models.head.config.target_layer_ids if models.head is not None else (),
    )
    if models.head is None:
        options = {key: value for key, value in config.drafter_options.items() if key != "depth"}
        stand_in = STAND_INS[config.drafter]
        return target, stand_in(depth=_stand_in_depth(config), vocab_size=target.vocab_size, options=options)
    drafter = HeadDrafter(
        models.head,
        models.head.config,
        lambda ids: functional.embedding(ids, embedding),
        target.lm_head,
        num_slots=num_slots,
        device=device,
        dtype=dtype,
    )
    return target, drafter


def own_small_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy the embedding and the vectors: the target keeps them as they are, and one view keeps a whole mapped file.

    The matrices are laid out anew on the CPU; then the file goes, which is 200 MB for the demo target.
    """
    for name, weight in weights.items():
        if weight.device.type == "cpu" and (weight.ndim == 1 or name == "embed_tokens.weight"):
            weights[name] = weight.clone()
    return weights


def describe(config: ServeConfig, models: Models, target: DecoderTarget) -> Mapping[str, Any]:
    """Return what ``info`` says of the models."""
    facts: dict[str, Any] = {
        "version": __version__,
        "target": config.target,
        "head": None,
        "drafter": config.drafter,
        "target_path": str(models.folder),
        "num_threads": torch.get_num_threads(),
        "is_graph": False,
        "round_bytes": round_bytes(models.config, models.head, target.dtype, target.state.num_bytes / target.num_slots),
        "notes": (*models.notes, *state_notes(models.config, target.dtype, config.max_budget)),
        **target.describe(),
    }
    if not isinstance(facts["attention"], str):
        facts["attention"] = ", ".join(facts["attention"])
    if models.head is not None:
        name = models.head_folder.name if config.head == AUTO_HEAD and models.head_folder else config.head
        facts.update(head=name, head_path=str(models.head_folder), head_is_causal=models.head.config.is_causal)
    return facts


def warm_up(engine: EmbeddedEngine, vocab_size: int) -> None:
    """Decode a prompt of arbitrary ids, drop what it left in the cache, and start counting afterwards.

    The ids follow a formula, so no prompt that anyone measures is ever decoded beforehand (R24).

    Raises:
        EngineError: the engine cannot decode.
    """
    finished = threading.Event()
    last: list[StepEvent] = []

    def on_event(event: StepEvent) -> None:
        if event.finish is not None:
            last.append(event)
            finished.set()

    length = min(40, engine.max_seq_len // 2)
    request = GenerateRequest(
        request_id="warm-up",
        input_ids=tuple((7919 * (i + 1)) % vocab_size for i in range(max(1, length))),
        sampling=SamplingParams(max_new_tokens=16, ignore_eos=True),
    )
    engine.submit(request, on_event)
    if not finished.wait(WARM_UP_TIMEOUT_S):
        raise EngineError(f"warm-up: not done after {WARM_UP_TIMEOUT_S:.0f} s")
    if last[0].finish is not None and last[0].finish.kind == "error":
        raise EngineError(f"warm-up: {last[0].finish.message}")
    engine.flush_cache()
    engine.reset_counters()


def _stand_in_depth(config: ServeConfig) -> int:
    depth: int = config.drafter_options.get("depth", STAND_IN_DEPTH)
    check_integer("drafter_options.depth", depth, 1, MAX_STAND_IN_DEPTH)
    return depth


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
