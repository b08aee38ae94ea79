"""``jetspec sweep``: every tree setting, gated and measured beside linear; which cell is best, does the tree pay?"""

from pathlib import Path
from typing import Annotated

import typer

from jetspec_cli import options
from jetspec_cli.commands import bench

Prompts = Annotated[str, typer.Option("--prompts", help="Prompts file, or a list of files.")]
Widths = Annotated[str | None, typer.Option("--tree-width", help="W, or a list: 4,8.")]
Budgets = Annotated[str | None, typer.Option("--budget", help="B, or a list: 16,64,chain.")]
Rules = Annotated[str | None, typer.Option("--rule", "--tree-rule", help="best_first, top2gap, accum_logp or a list.")]
Betas = Annotated[str | None, typer.Option("--beta", help="Slope of top2gap, or a list.")]
Gaps = Annotated[str | None, typer.Option("--g0", help="Gap at which top2gap halves W, or a list.")]
Replay = Annotated[
    bool | None,
    typer.Option(
        "--replay/--no-replay",
        help="Record once, replay every cell, measure the promising ones.  [default: for 5 trees and more]",
    ),
]
EXECUTORS = ("local", "ray")
Executor = Annotated[
    str, typer.Option("--executor", help="local: one server; ray: cells over a Ray cluster's GPUs or cores, live.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the results, resumed; results/sweep-... if unset.")]


def sweep(
    *, extra: options.Extra = None, prompts: Prompts = options.PROMPTS,
    tree_width: Widths = None, budget: Budgets = None, rule: Rules = None, beta: Betas = None,
    g0: Gaps = None, keep_spine: options.KeepSpine = None, url: bench.Url = None, replay: Replay = None,
    repeat: bench.Repeat = 1, max_new_tokens: bench.Cap = None, dtype: bench.Dtype = "auto",
    allow_near_ties: bench.NearTies = False, engine: options.Engine = None, target: options.Target = None,
    head: options.Head = None, drafter: options.DrafterName = None, device: options.Device = None,
    page_size: options.PageSize = None, max_seq_len: options.MaxSeqLen = None, threads: options.Threads = None,
    api_key: options.ApiKey = None, timeout_s: bench.Timeout = 600.0, executor: Executor = "local",
    dry_run: bench.DryRun = False, out: Out = None, output: bench.Format = "table",
) -> None:  # fmt: skip
    """Gate and measure every cell of a grid beside the linear path, on one server; resumable."""
    from jetspec_cli.bench.grid import pairings_of, trees_of
    from jetspec_cli.bench.plan import BenchSpec, Load
    from jetspec_cli.bench.server import Link
    from jetspec_cli.commands.measuring import read_all, run
    from jetspec_cli.environment import api_key as key_of_environment

    is_spread = spread_from(executor, url, replay)
    settings = options.given(
        width=options.parse_integers("--tree-width", tree_width), budget=options.parse_budgets("--budget", budget),
        rule=options.split_list(rule), beta=options.parse_numbers("--beta", beta),
        g0=options.parse_numbers("--g0", g0), keep_spine=None if keep_spine is None else [keep_spine],
    )  # fmt: skip
    server = options.given(
        engine=engine, target=target, head=head, drafter=drafter, device=device, page_size=page_size,
        max_seq_len=max_seq_len, num_threads=threads, extra_args=tuple(extra) if extra else None,
    )  # fmt: skip
    spec = BenchSpec(
        kind="sweep", prompts=tuple(Path(name) for name in options.split_list(prompts) or []),
        pairings=pairings_of(trees_of(settings)), load=Load(repeat=repeat, max_new_tokens=max_new_tokens),
        dtype=dtype, server=server, allow_near_ties=allow_near_ties,
        replay=False if is_spread else replay,
    )  # fmt: skip
    link = Link(url=url, api_key=api_key or key_of_environment(), timeout_s=timeout_s)
    # The same command finds its own rows again; another grid gets another folder.
    prompts_read = read_all(spec.prompts)
    folder = out or Path("results") / f"sweep-{spec.fingerprint(prompts_read, url)[:8]}"
    if not dry_run:
        options.writable_folder("--out", folder)
    raise typer.Exit(run(spec, link, out=folder / "sweep.json", output=output, is_dry=dry_run, is_spread=is_spread))


def spread_from(executor: str, url: str | None, replay: bool | None) -> bool:
    """Say whether cells are spread over a Ray cluster.

    Raises:
        ConfigError: an executor nobody knows, or one that cannot do what else was asked.
        UnavailableError: ray is not installed.
    """
    from jetspec_cli.bench.spread import require_ray
    from jetspec_engine.config import check_choice
    from jetspec_engine.errors import ConfigError

    check_choice("executor", executor, EXECUTORS)
    if executor == "local":
        return False
    for option, value in (("--url", url), ("--replay", replay)):
        if value:
            hint = "every worker starts a server of its own and measures every cell"
            raise ConfigError(f"--executor ray: cannot be used with {option}", hint=hint)
    require_ray()
    return True
