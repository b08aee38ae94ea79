"""``jetspec profile``: where does a round's time go, and how far is it from what the memory allows?"""

from pathlib import Path
from typing import Annotated

import typer

from jetspec_cli import options
from jetspec_cli.commands import bench

Prompts = Annotated[Path | None, typer.Option("--prompts", help="Prompts file; its first prompt is decoded.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Rounds to time, and again to profile.")]
Tokens = Annotated[int | None, typer.Option("--context", help="Repeat or cut the prompt to so many tokens.")]
Out = Annotated[Path | None, typer.Option("--out", help="File of the document.")]
Trace = Annotated[Path | None, typer.Option("--trace", help="File of the trace, for https://ui.perfetto.dev.")]
Format = Annotated[str, typer.Option("--format", help="table or json.")]


def profile(
    *, prompts: Prompts = None, url: bench.Url = None, tree_width: bench.Width = None, budget: bench.Budget = None,
    tree_rule: bench.Rule = None, beta: bench.Beta = None, g0: bench.Gap = None, keep_spine: options.KeepSpine = None,
    rounds: Rounds = 20, context: Tokens = None, dtype: bench.Dtype = "auto", engine: options.Engine = None,
    target: options.Target = None, head: options.Head = None, drafter: options.DrafterName = None,
    device: options.Device = None, page_size: options.PageSize = None, max_seq_len: options.MaxSeqLen = None,
    threads: options.Threads = None, api_key: options.ApiKey = None, timeout_s: bench.Timeout = 600.0,
    out: Out = None, trace: Trace = None, output: Format = "table",
) -> None:  # fmt: skip
    """Time a tree's rounds by phase and by kernel, beside the memory floor; write a trace."""
    import json
    import sys

    from jetspec_cli import console, environment
    from jetspec_cli.bench.profile import ProfileSpec
    from jetspec_cli.bench.profile import profile as run
    from jetspec_cli.bench.server import Link
    from jetspec_cli.prompts import read_prompts
    from jetspec_cli.reporting import json_doc
    from jetspec_cli.reporting.profile_text import render

    options.check_format(output)
    outputs = {"--out": out, "--trace": trace}
    for flag, path in outputs.items():
        options.writable_file(flag, path)
    options.separate_files(outputs, {"--prompts": prompts})
    tree = options.given(
        width=tree_width, budget=options.parse_budget("--budget", budget), rule=tree_rule, beta=beta, g0=g0,
        keep_spine=keep_spine,
    )  # fmt: skip
    server = options.given(
        engine=engine, target=target, head=head, drafter=drafter, device=device, page_size=page_size,
        max_seq_len=max_seq_len, num_threads=threads,
    )  # fmt: skip
    spec = ProfileSpec(
        tree=options.tree_from(tree) if tree or url is None else None, num_rounds=rounds, context=context,
        prompt=read_prompts(prompts)[0] if prompts is not None else None, dtype=dtype, server=server,
    )  # fmt: skip
    link = Link(url=url, api_key=api_key or environment.api_key(), timeout_s=timeout_s)
    document, made = run(spec, link, environment.redacted_command(sys.argv), console.talk)
    console.data(render(document) if output == "table" else json_doc.dumps(document).rstrip())
    for path, text in ((out, json_doc.dumps(document)), (trace, json.dumps(made))):
        if path is not None:
            json_doc.write_whole(path, text)
            console.talk(f"written to {path}")
