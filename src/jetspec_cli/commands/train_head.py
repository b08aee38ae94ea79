"""``jetspec train-head``: distil a draft head on text that its target writes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jetspec_cli import options

Out = Annotated[Path, typer.Option("--out", help="Folder for the head and its training record.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the text and state in OUT/work.")]
GenerateS = Annotated[float | None, typer.Option("--generate-s", help="Seconds of writing text; 0 uses what is there.")]
TrainS = Annotated[float | None, typer.Option("--train-s", help="Seconds of training in all, over resumed calls.")]
PartS = Annotated[float | None, typer.Option("--part-s", help="Seconds of training of this call; all if unset.")]
Layers = Annotated[int | None, typer.Option("--layers", help="Layers of the head.")]
TargetLayers = Annotated[str | None, typer.Option("--target-layers", help="Target layers it reads, as 1,8,14,20,26.")]
Batch = Annotated[int | None, typer.Option("--batch", help="Conversations a step.")]
Anchors = Annotated[int | None, typer.Option("--anchors", help="Anchors a conversation with a short block.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate of the matrices.")]
HeldOut = Annotated[list[Path] | None, typer.Option("--held-out", help="Prompts file never trained on; measured.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any other setting: write.num_rows=2048, ...")]


def train_head(
    *,
    out: Out,
    resume: Resume = False,
    target: options.Target = None,
    generate_s: GenerateS = None,
    train_s: TrainS = None,
    part_s: PartS = None,
    layers: Layers = None,
    target_layers: TargetLayers = None,
    batch: Batch = None,
    anchors: Anchors = None,
    lr: Rate = None,
    held_out: HeldOut = None,
    seed: Seed = None,
    device: options.Device = None,
    settings: Settings = None,
    output: options.Format = "table",
) -> None:
    """Distil a draft head for a target. A GPU is advised: the shipped head took 11 minutes of an H200."""
    from jetspec_cli import console, environment, prompts
    from jetspec_cli.reporting import tables
    from jetspec_engine import registry

    options.check_format(output)
    chosen: dict[str, Any] = options.parse_settings("--set", settings or [], ("write", "train"))
    chosen["write"] |= options.given(seconds=generate_s)
    chosen["train"] |= options.given(seconds=train_s, batch=batch, short_anchors=anchors, lr=lr, seed=seed)
    chosen |= options.given(
        target=target or options.SERVE.target, out=out, work=out / "work", resume=resume, train_part_s=part_s,
        num_layers=layers, device=device, seed=seed, cache_dir=environment.cache_dir(),
        target_layer_ids=options.parse_integers("--target-layers", target_layers),
    )  # fmt: skip
    options.writable_folder("--out", out)
    asked = [p for path in held_out or [] for p in prompts.read_prompts(path) if p.messages or p.text]
    chosen["held_out"] = [{"class": p.text_class, "messages": p.messages or [("user", p.text)]} for p in asked]
    record = registry.head_trainer().train(chosen, lambda progress: console.talk(progress.label))
    table = record.get("evaluation", {}).get("accept_length", {})
    if output == "json":
        console.data_json(record)
    elif table:
        names = {"class": "accept length", **{name: name for name in table["pooled"]}}
        console.data(tables.plain(names, [{"class": label, **row} for label, row in table.items()]))
    console.talk(f"head: {out}")
