"""``jetspec bench``: how fast is one configuration, and against linear and plain decoding?"""

from pathlib import Path
from typing import Annotated

import typer

from jetspec_cli import options

Prompts = Annotated[Path, typer.Option("--prompts", help="Prompts file, JSON Lines.")]
Url = Annotated[str | None, typer.Option("--url", help="Server to measure, instead of starting one.")]
Model = Annotated[str | None, typer.Option("--model", help="Model to ask for at --url, if the server lists none.")]
Width = Annotated[int | None, typer.Option("--tree-width", help="W: candidates per depth; 1 is linear.")]
Budget = Annotated[str | None, typer.Option("--budget", help="B: most nodes of the tree, root included; or chain.")]
Rule = Annotated[str | None, typer.Option("--tree-rule", help="best_first, top2gap or accum_logp.")]
Beta = Annotated[float | None, typer.Option("--beta", help="Slope of top2gap; selects that rule.")]
Gap = Annotated[float | None, typer.Option("--g0", help="Gap at which top2gap halves W; selects it.")]
Compare = Annotated[str | None, typer.Option("--compare", help="Interleave with linear, plain, or linear,plain.")]
CompareUrl = Annotated[str | None, typer.Option("--compare-url", help="Interleave with another server, as it runs.")]
Concurrency = Annotated[int, typer.Option("--concurrency", help="Requests in flight.")]
Rate = Annotated[float | None, typer.Option("--request-rate", help="Requests a second, arriving at random.")]
Repeat = Annotated[int, typer.Option("--repeat", help="Passes over the prompts.")]
Cap = Annotated[int | None, typer.Option("--max-new-tokens", help="Instead of the prompts' own numbers.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the arrivals at --request-rate.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32 or bfloat16.")]
NearTies = Annotated[bool, typer.Option("--allow-near-ties", help="Near-ties keep their speed.")]
Timeout = Annotated[float, typer.Option("--timeout-s", help="Longest wait for an answer's next part.", min=0.001)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and estimate the time; measure nothing.")]
Out = Annotated[Path | None, typer.Option("--out", help="Result document; its rows go beside it and are resumed.")]
Format = Annotated[str, typer.Option("--format", help="table, json, csv or md.")]


def bench(
    *, extra: options.Extra = None, prompts: Prompts = Path(options.PROMPTS), url: Url = None, model: Model = None,
    tree_width: Width = None, budget: Budget = None,
    tree_rule: Rule = None, beta: Beta = None, g0: Gap = None, keep_spine: options.KeepSpine = None,
    compare: Compare = None, compare_url: CompareUrl = None, concurrency: Concurrency = 1, request_rate: Rate = None,
    repeat: Repeat = 3, max_new_tokens: Cap = None, seed: Seed = 0, dtype: Dtype = "auto",
    allow_near_ties: NearTies = False, engine: options.Engine = None, target: options.Target = None,
    head: options.Head = None, drafter: options.DrafterName = None, device: options.Device = None,
    page_size: options.PageSize = None, max_seq_len: options.MaxSeqLen = None, threads: options.Threads = None,
    api_key: options.ApiKey = None, timeout_s: Timeout = 600.0, dry_run: DryRun = False, out: Out = None,
    output: Format = "table",
) -> None:  # fmt: skip
    """Measure one configuration: times, speeds, accept length; interleaved with others on request."""
    from jetspec_cli.bench.plan import BenchSpec, Load, pair
    from jetspec_cli.bench.server import Link
    from jetspec_cli.commands.measuring import run
    from jetspec_cli.environment import api_key as key_of_environment

    tree = options.given(
        width=tree_width, budget=options.parse_budget("--budget", budget), rule=tree_rule, beta=beta, g0=g0,
        keep_spine=keep_spine,
    )  # fmt: skip
    server = options.given(
        engine=engine, target=target, head=head, drafter=drafter, device=device, page_size=page_size,
        max_seq_len=max_seq_len, num_threads=threads, extra_args=tuple(extra) if extra else None,
    )  # fmt: skip
    load = Load(
        repeat=repeat, concurrency=concurrency, request_rate=request_rate, max_new_tokens=max_new_tokens, seed=seed
    )
    chosen = options.tree_from(tree) if tree or url is None else None
    spec = BenchSpec(
        kind="bench", prompts=(prompts,), load=load, dtype=dtype, server=server, allow_near_ties=allow_near_ties,
        pairings=(pair(chosen, options.split_list(compare) or [], has_other=compare_url is not None),),
    )  # fmt: skip
    key = api_key or key_of_environment()
    link = Link(url=url, api_key=key, timeout_s=timeout_s, model=model, compare_url=compare_url)
    raise typer.Exit(run(spec, link, out=out, output=output, is_dry=dry_run))
