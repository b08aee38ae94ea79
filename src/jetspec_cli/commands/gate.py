"""``jetspec gate``: is every token of tree decoding the token of the linear path?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from jetspec_cli import options
from jetspec_cli.commands.self_test import SelfTest, self_test

Prompts = Annotated[Path | None, typer.Option("--prompts", help="Prompts file, JSON Lines.")]
GateFile = Annotated[Path | None, typer.Option("--gate", help="Gate file, TOML; flags override it.")]
Url = Annotated[str | None, typer.Option("--url", help="Server to check, instead of starting one.")]
OracleUrl = Annotated[str | None, typer.Option("--oracle-url", help="Server of the oracle, when it is another one.")]
Oracle = Annotated[str | None, typer.Option("--oracle", help="linear, greedy or both: linear,greedy.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="auto, float32, bfloat16 or a list.")]
Widths = Annotated[str | None, typer.Option("--tree-width", help="W, or a list: 4,7.")]
Budgets = Annotated[str | None, typer.Option("--budget", help="B, or a list: 16,64,chain.")]
Rules = Annotated[str | None, typer.Option("--tree-rule", help="best_first, top2gap, accum_logp or a list.")]
Betas = Annotated[str | None, typer.Option("--beta", help="Slope of top2gap, or a list.")]
Gaps = Annotated[str | None, typer.Option("--g0", help="Gap at which top2gap halves W, or a list.")]
Cap = Annotated[int | None, typer.Option("--max-new-tokens", help="Instead of the prompts' own numbers.")]
Repeat = Annotated[int | None, typer.Option("--repeat", help="Decode every prompt so many times.")]
NearTies = Annotated[bool | None, typer.Option("--allow-near-ties", help="Count near-ties without failing.")]
Out = Annotated[Path | None, typer.Option("--out", help="Result document, JSON.")]
JUnit = Annotated[Path | None, typer.Option("--junit", help="JUnit XML.")]
Summary = Annotated[
    Path | None,
    typer.Option("--summary", help="Append a Markdown report to this file.  [default: GITHUB_STEP_SUMMARY, if set]"),
]
Timeout = Annotated[float, typer.Option("--timeout-s", help="Longest wait for one answer.", min=0.001)]


def gate(
    *,
    extra: options.Extra = None, prompts: Prompts = None,
    gate_file: GateFile = None, url: Url = None, oracle_url: OracleUrl = None,
    oracle: Oracle = None, dtype: Dtype = None, tree_width: Widths = None, budget: Budgets = None,
    tree_rule: Rules = None, beta: Betas = None, g0: Gaps = None, keep_spine: options.KeepSpine = None,
    max_new_tokens: Cap = None, repeat: Repeat = None, allow_near_ties: NearTies = None,
    engine: options.Engine = None, target: options.Target = None, head: options.Head = None,
    drafter: options.DrafterName = None, device: options.Device = None, page_size: options.PageSize = None,
    max_seq_len: options.MaxSeqLen = None, threads: options.Threads = None, api_key: options.ApiKey = None,
    is_self_test: SelfTest = False, timeout_s: Timeout = 600.0, out: Out = None, junit: JUnit = None,
    summary: Summary = None, output: options.Format = "table",
) -> None:  # fmt: skip
    """Compare tree decoding with an oracle, token by token, on an empty cache."""
    from jetspec_cli import console, environment, hints
    from jetspec_cli.gating.execute import execute
    from jetspec_cli.gating.sides import Links
    from jetspec_cli.gating.spec import load_spec
    from jetspec_cli.prompts import read_prompts
    from jetspec_cli.reporting.live import Live
    from jetspec_cli.reporting.outputs import Outputs

    options.check_format(output)
    if is_self_test:
        raise typer.Exit(self_test(sys.argv, out, output))
    tree = options.given(
        width=options.parse_integers("--tree-width", tree_width), budget=options.parse_budgets("--budget", budget),
        rule=options.split_list(tree_rule), beta=options.parse_numbers("--beta", beta),
        g0=options.parse_numbers("--g0", g0), keep_spine=keep_spine,
    )  # fmt: skip
    server = options.given(
        engine=engine, target=target, head=head, drafter=drafter, device=device, page_size=page_size,
        max_seq_len=max_seq_len, num_threads=threads, extra_args=tuple(extra) if extra else None,
    )  # fmt: skip
    flags = options.given(
        prompts=str(prompts) if prompts else None, oracles=options.split_list(oracle), dtypes=options.split_list(dtype),
        repeat=repeat, max_new_tokens=max_new_tokens, allow_near_ties=allow_near_ties, tree=tree or None,
        server=server or None,
    )  # fmt: skip
    spec = load_spec(gate_file, flags)
    links = Links(url=url, oracle_url=oracle_url, api_key=api_key or environment.api_key(), timeout_s=timeout_s)
    outputs = Outputs(
        out=out, junit=junit, summary=summary or environment.job_summary(), as_json=output == "json",
        inputs={"--prompts": spec.prompts, "--gate": gate_file},
    )  # fmt: skip
    asked = read_prompts(spec.prompts)
    with console.bar("gate", None) as bar:
        document = execute(spec, asked, links, environment.redacted_command(sys.argv), Live(bar, outputs, len(asked)))
    outputs.finish(document)
    if document["error"]:
        code = document["exit_code"]
        console.error(document["error"], document["hint"] or hints.fallback(code, ["gate"]), code, as_json=False)
    raise typer.Exit(document["exit_code"])
