"""Text for one call: composed prompts, answered by the target, cleaned of what must not be trained on.

Everything random follows from the options' seed and the part's number, so that a later part writes other text.
"""

from collections.abc import Callable
from typing import Any

import torch

from jetspec_engine.records import Progress
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.options import TrainOptions
from jetspec_engine.training.prompts import HeldOut, compose, encode_turns, load_seeds
from jetspec_engine.training.target_files import TargetFiles
from jetspec_engine.training.text_pool import TextPool
from jetspec_engine.training.writer import Writer

PART_SEED = 1000
NUM_CHECKED_ROWS = 64


def write_text(
    files: TargetFiles, options: TrainOptions, part: int, on_progress: Callable[[Progress], None]
) -> tuple[TextPool, dict[str, Any]]:
    """Write one part of the text; return it and how it came to be.

    Args:
        part: 0 for the first text of a work folder, then counting.
    """
    o, device = options, files.target.device
    kept_out = held_out_turns(o)
    turns = compose(load_seeds(), o.num_prompts, seed=o.seed + PART_SEED * part)
    allowed = [turn for turn in turns if turn.is_open or not kept_out.has(turn.text)]
    prompts = encode_turns(allowed, files.chat, files.encode, device=device, seed=o.seed)
    suffix = files.encode([files.chat.suffix])[0]
    writer = Writer(files.target.eager(), prompts, suffix, files.chat.end_id, settings=o.write, seed=o.seed + part)
    if device.type == "cuda":
        writer.capture()
    pool, facts = writer.write(on_progress)
    del writer
    if device.type == "cuda":
        torch.cuda.empty_cache()
    is_clean = allowed_rows(pool, files, kept_out)
    facts |= {"num_prompts": len(allowed), "num_held_out_turns": int((~is_clean).sum())}
    pool = pool.select(is_clean)
    facts["num_kept"] = len(pool)
    facts["teacher_forced_agreement"] = agreement_with_reading(files.target, pool)
    return pool, facts


def held_out_turns(options: TrainOptions) -> HeldOut:
    """Return what recognises the user turns that must not be trained on."""
    asked = [text for prompt in options.held_out for role, text in prompt.messages if role == "user"]
    return HeldOut([*asked, *options.kept_out])


def allowed_rows(pool: TextPool, files: TargetFiles, kept_out: HeldOut) -> torch.Tensor:
    """Mark (R,) the rows whose user turn is no held-out one; a turn that the target continued can become one."""
    starts = pool.answer_starts.tolist()
    heads = [row[:start] for row, start in zip(pool.tokens.cpu().tolist(), starts, strict=True)]
    flags = []
    for text in files.decode(heads):
        prefix = next((p for p in files.chat.prefixes if text.startswith(p)), "")
        flags.append(not kept_out.has(text[len(prefix) :].removesuffix(files.chat.suffix)))
    return torch.tensor(flags, dtype=torch.bool)


def agreement_with_reading(target: FrozenTarget, pool: TextPool) -> float:
    """Return how much of the greedy text is the target's choice when it reads the text as a whole.

    Far from 1 means that writing and reading disagree, and that the text is worthless.
    """
    rows = pool.is_greedy.nonzero()[:NUM_CHECKED_ROWS, 0]
    if not len(rows):
        return 1.0
    part = pool.batch(rows)
    _, last = target.eager().read(part.tokens)
    t = torch.arange(part.tokens.shape[1] - 1, device=last.device)
    is_answer = (t + 1 >= part.answer_starts[:, None]) & (t + 1 < part.lengths[:, None])
    choice = target.logits(last[:, :-1][is_answer], exact=True).argmax(-1)
    return round(float((choice == part.tokens[:, 1:][is_answer]).float().mean()), 4)
