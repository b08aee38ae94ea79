"""``train-head`` as one call: write text with the target, train a head on it, save it, measure it.

Everything of a run lies in its work folder (text, training state), so the next call with the same folder continues;
the head, in the public checkpoint format, and ``training.json`` lie in the output folder after every call.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from jetspec_engine.config import check_device
from jetspec_engine.draft.checkpoint import check_replaceable, save_head
from jetspec_engine.draft.config import HeadConfig
from jetspec_engine.draft.head import DraftHead
from jetspec_engine.draft.taps import default_target_layer_ids
from jetspec_engine.errors import ConfigError, InconclusiveError, UnavailableError
from jetspec_engine.records import Progress
from jetspec_engine.training.frozen_target import FrozenTarget
from jetspec_engine.training.head_blocks import HeadBlocks, measure_feature_scale, new_parameters
from jetspec_engine.training.loop import TrainingRun
from jetspec_engine.training.options import TrainOptions
from jetspec_engine.training.replay import accept_table, draft_everywhere, measured_trees, write_greedy
from jetspec_engine.training.target_files import TargetFiles, find_target, read_target
from jetspec_engine.training.text_pool import TextPool, join
from jetspec_engine.training.text_source import agreement_with_reading, write_text

MAX_POSITIONS = 2048
STATE_FILE, TEXT_FILE, FACTS_FILE, RECORD_FILE = "state.safetensors", "text.safetensors", "text.json", "training.json"


class Trainer:
    """The registry's head trainer."""

    def train(self, options: Mapping[str, Any], on_progress: Callable[[Progress], None]) -> Mapping[str, Any]:
        """Run one call; return its record (also written to ``training.json``).

        Args:
            options: see ``TrainOptions``.
            on_progress: counts while writing; lines of news as ``Progress`` with total 0.

        Raises:
            ConfigError, ArtifactError, UnavailableError: bad options, a bad target or work folder, no such device.
            InconclusiveError: there is no text to learn from.
            EngineError: the loss is no longer finite.
        """
        return Call(TrainOptions.from_mapping(options), on_progress).run()


class Call:
    """One call's parts, in the order in which ``run`` uses them."""

    def __init__(self, options: TrainOptions, on_progress: Callable[[Progress], None]) -> None:
        self.options, self.on_progress = options, on_progress
        self.device = choose_device(options.device)
        is_cuda = self.device.type == "cuda"
        self.dtype = torch.bfloat16 if is_cuda else torch.float32
        self.is_compiled = is_cuda and options.train.is_compiled
        self.started = time.monotonic()
        settings = _plain(asdict(options))
        for name in ("held_out", "kept_out", "out", "work", "cache_dir"):
            del settings[name]
        self.record: dict[str, Any] = {
            "settings": settings,
            "environment": {
                "hardware": torch.cuda.get_device_name(self.device) if is_cuda else platform.machine(),
                "torch": torch.__version__,
                "python": platform.python_version(),
                "dtype": str(self.dtype).removeprefix("torch."),
            },
        }

    def run(self) -> dict[str, Any]:
        """Do everything; return the record."""
        o = self.options
        files = self.open()
        pool, held = self.text(files)
        run = self.training(files.target, pool, held)
        run.run(self.on_point, seconds=o.train_part_s or float("inf"), checkpoint=o.work / STATE_FILE)
        self.save(run)
        if o.held_out:
            self.evaluate(run, files)
        return self.write_record()

    def open(self) -> TargetFiles:
        """Make the folders and load the target."""
        o = self.options
        if not o.resume and any((o.work / name).exists() for name in (STATE_FILE, TEXT_FILE)):
            raise ConfigError(f"work: {o.work}: it holds an earlier run", hint="--resume, or another --out")
        check_replaceable(o.out, is_resumed=o.resume)
        for folder in (o.out, o.work):
            folder.mkdir(parents=True, exist_ok=True)
        folder = find_target(o.target, o.cache_dir, self.on_progress)
        files = read_target(
            folder, device=self.device, dtype=self.dtype, max_positions=MAX_POSITIONS, is_compiled=self.is_compiled
        )
        self.say("target loaded")
        return files

    def text(self, files: TargetFiles) -> tuple[TextPool, TextPool]:
        """Load what is there, write more if asked; return the text to train on and the held-out text."""
        o = self.options
        path, facts_path = o.work / TEXT_FILE, o.work / FACTS_FILE
        facts = json.loads(facts_path.read_text("utf-8")) if facts_path.exists() else []
        pools = [TextPool.load(path, self.device)] if path.exists() else []
        if o.write.seconds > 0:
            fresh, fact = write_text(files, o, len(facts), self.on_progress)
            self.say(f"text: {json.dumps(fact)}")
            pools.append(fresh)
            facts.append(fact)
            join(pools).save(path)
            facts_path.write_text(json.dumps(facts), "utf-8")
        if not facts or not facts[0]["num_kept"]:
            raise InconclusiveError("text: no conversation to learn from", hint="give --generate-s more seconds")
        self.record["text"] = facts
        # The first part's rows alone are held out, so that a later call holds out the same ones.
        first = facts[0]["num_kept"]
        whole = join(pools)
        order = torch.arange(len(whole))
        rest, held = whole.select(order[:first]).split(o.num_held_out, seed=o.seed)
        return (join([rest, whole.select(order[first:])]) if first < len(whole) else rest), held

    def training(self, target: FrozenTarget, pool: TextPool, held: TextPool) -> TrainingRun:
        """Start a run, or continue the work folder's."""
        o = self.options
        config = head_config(target, o)
        sample = pool.batch(torch.arange(min(64, len(pool))))
        states, _ = target.eager().read(sample.tokens, config.target_layer_ids)
        t = torch.arange(sample.tokens.shape[1], device=self.device)
        is_real = (t > 0) & (t < sample.lengths[:, None])
        scale = measure_feature_scale(states, is_real, len(config.target_layer_ids))
        head = self._blocks(config, target, scale, is_compiled=self.is_compiled)
        run = TrainingRun(head, new_parameters(config, o.seed), target, pool=pool, held_out=held, settings=o.train)
        if (o.work / STATE_FILE).exists():
            run.restore(o.work / STATE_FILE)
            self.say(f"resumed at step {run.position.step}")
        return run

    def save(self, run: TrainingRun) -> None:
        """Write the head in the public format, and the curve into the record."""
        head = DraftHead(run.head.config)
        head.load_state_dict(run.head.folded(run.parameters))
        here = run.position
        facts = {"steps": here.step, "train_s": round(here.elapsed_s, 1)}
        save_head(self.options.out, head, run.head.config, {"jetspec": facts})
        self.record["curve"] = here.curve
        self.record["training"] = {
            "steps": here.step,
            "epochs": here.epoch,
            "seconds": round(here.elapsed_s, 1),
            "num_parameters": sum(p.numel() for p in run.parameters.values()),
            "num_rows": len(run.pool),
            "num_answer_tokens": run.pool.num_answer_tokens(),
        }

    def evaluate(self, run: TrainingRun, files: TargetFiles) -> None:
        """Replay the held-out prompts with the head as it is saved (bfloat16)."""
        o = self.options
        prompts = [files.encode_chat(p.messages) for p in o.held_out]
        pool = write_greedy(files.target.eager(), prompts, o.eval_tokens, files.chat.end_id)
        folded = {name: value.to(self.device) for name, value in run.head.folded(run.parameters).items()}
        plain = self._blocks(run.head.config, files.target, torch.ones_like(run.head.feature_scale))
        drafts = draft_everywhere(plain, folded, files.target, pool, width=o.tree_width)
        labels = [p.label for p in o.held_out]
        table = accept_table(drafts, labels, measured_trees(o.tree_width))
        self.record["evaluation"] = {
            "tree_width": o.tree_width,
            "num_prompts": len(prompts),
            "answer_tokens": mean_lengths(labels, (pool.lengths - pool.answer_starts).tolist()),
            "teacher_forced_agreement": agreement_with_reading(files.target, pool),
            "accept_length": table,
        }

    def on_point(self, point: dict[str, Any]) -> None:
        """Report one point of the curve."""
        agree = " ".join(f"{100 * x:.0f}" for x in point["agree_by_depth"][:8])
        self.say(
            f"step {point['step']} epoch {point['epoch']} loss {point['loss']:.4f} lr {point['lr']:.1e} "
            f"{point['step_ms']:.1f} ms/step agree% {agree} held-out chain {point.get('held_out', {}).get('chain')}"
        )

    def write_record(self) -> dict[str, Any]:
        """Write ``training.json`` beside the head."""
        self.record["wall_s"] = round(time.monotonic() - self.started, 1)
        if self.device.type == "cuda":
            self.record["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        (self.options.out / RECORD_FILE).write_text(json.dumps(self.record, indent=1) + "\n", "utf-8")
        return self.record

    def say(self, text: str) -> None:
        """Report a line of news."""
        self.on_progress(Progress(label=f"[{time.monotonic() - self.started:6.1f} s] {text}", done=0, total=0))

    def _blocks(
        self, config: HeadConfig, target: FrozenTarget, scale: torch.Tensor, *, is_compiled: bool = False
    ) -> HeadBlocks:
        return HeadBlocks(
            config, target.embedding, scale, dtype=self.dtype, max_positions=MAX_POSITIONS, is_compiled=is_compiled
        )


def choose_device(name: str) -> torch.device:
    """Return the device; auto takes CUDA where there is one. Raises UnavailableError, ConfigError."""
    check_device(name)
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name.startswith("cuda") and not has_cuda:
        raise UnavailableError(f"device {name}: 0 CUDA devices here", hint="use --device cpu")
    return torch.device(name)


def head_config(target: FrozenTarget, options: TrainOptions) -> HeadConfig:
    """Return the head's configuration: the target's dimensions, the options' depth and block."""
    t, o = target.config, options
    ids = o.target_layer_ids or default_target_layer_ids(t.num_layers, o.num_layers)
    return HeadConfig(
        num_layers=o.num_layers,
        hidden_size=t.hidden_size,
        num_heads=t.num_heads,
        num_kv_heads=t.num_kv_heads,
        head_dim=t.head_dim,
        intermediate_size=t.intermediate_size,
        vocab_size=t.vocab_size,
        rms_norm_eps=t.rms_norm_eps,
        rope_theta=t.rope_theta,
        max_position_embeddings=t.max_position_embeddings,
        block_size=o.block_size,
        mask_token_id=o.mask_token_id,
        target_layer_ids=ids,
        num_target_layers=t.num_layers,
        is_causal=True,
        bos_token_id=t.bos_token_id,
        eos_token_ids=t.eos_token_ids,
    )


def mean_lengths(labels: Sequence[str], lengths: Sequence[int]) -> dict[str, float]:
    """Return the mean answer length of each class, tokens."""
    by_label: dict[str, list[int]] = {}
    for label, length in zip(labels, lengths, strict=True):
        by_label.setdefault(label, []).append(length)
    return {label: round(sum(values) / len(values), 1) for label, values in by_label.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else value
