"""``jetspec serve``: start an engine and say what runs."""

from typing import Annotated

import typer

from jetspec_cli import options

SERVE, TREE = options.SERVE, options.TREE
Host = Annotated[str | None, typer.Option("--host", help=f"Address to listen on.  [default: {SERVE.host}]")]
Port = Annotated[int | None, typer.Option("--port", help=f"Port; 0 takes a free one.  [default: {SERVE.port}]")]
Width = Annotated[
    int | None, typer.Option("--tree-width", help=f"W: candidates per depth; 1 is linear.  [default: {TREE.width}]")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help=(
            "B: most nodes of the tree, root included. chain: the head's block, D + 1; also what W without B means.  "
            f"[default: {TREE.budget}]"
        ),
    ),
]
Rule = Annotated[
    str | None, typer.Option("--tree-rule", help=f"best_first, top2gap or accum_logp.  [default: {TREE.rule}]")
]
Beta = Annotated[float | None, typer.Option("--beta", help="Slope of top2gap; selects that rule.")]
Gap = Annotated[float | None, typer.Option("--g0", help="Gap in nats at which top2gap halves W; selects that rule.")]
MaxWidth = Annotated[int | None, typer.Option("--max-tree-width", help="Largest W to switch to at run time.")]
MaxBudget = Annotated[int | None, typer.Option("--max-budget", help="Largest B to switch to at run time.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help=f"auto, float32 or bfloat16.  [default: {SERVE.dtype}]")]
MaxRunning = Annotated[
    int | None, typer.Option("--max-running", help=f"Requests decoded at once.  [default: {SERVE.max_running}]")
]
NoPull = Annotated[bool, typer.Option("--no-pull", help="Refuse to download a missing target.")]
StopWithStdin = Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)]


def serve(
    *,
    extra: options.Extra = None,
    engine: options.Engine = None,
    target: options.Target = None,
    head: options.Head = None,
    drafter: options.DrafterName = None,
    tree_width: Width = None,
    budget: Budget = None,
    tree_rule: Rule = None,
    beta: Beta = None,
    g0: Gap = None,
    keep_spine: options.KeepSpine = None,
    max_tree_width: MaxWidth = None,
    max_budget: MaxBudget = None,
    dtype: Dtype = None,
    device: options.Device = None,
    host: Host = None,
    port: Port = None,
    api_key: options.ApiKey = None,
    page_size: options.PageSize = None,
    max_seq_len: options.MaxSeqLen = None,
    max_running: MaxRunning = None,
    threads: options.Threads = None,
    no_pull: NoPull = False,
    stop_with_stdin: StopWithStdin = False,
    output: options.Format = "table",
) -> None:
    """Serve a target and its draft head over HTTP: OpenAI-compatible and SGLang-native."""
    from jetspec_cli import environment
    from jetspec_cli.serving import host as hosting

    options.check_format(output)
    tree = options.given(
        width=tree_width, budget=options.parse_budget("--budget", budget), rule=tree_rule, beta=beta, g0=g0,
        keep_spine=keep_spine,
    )  # fmt: skip
    settings = options.given(
        engine=engine, target=target, head=head, drafter=drafter, dtype=dtype, device=device, host=host, port=port,
        api_key=api_key or environment.api_key(), page_size=page_size, max_seq_len=max_seq_len,
        max_running=max_running, num_threads=threads, max_width=max_tree_width, max_budget=max_budget,
        extra_args=tuple(extra) if extra else None, cache_dir=str(environment.cache_dir()),
    )  # fmt: skip
    config = options.serve_config(settings, [options.tree_from(tree)])
    hosting.host(config, can_pull=not no_pull, as_json=output == "json", is_child=stop_with_stdin)
