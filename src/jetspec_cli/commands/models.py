"""``jetspec models``: list, pull and inspect target and draft head pairs."""

from typing import Annotated, Any

import typer

from jetspec_cli import options

app = typer.Typer(help="List, pull and inspect models.", rich_markup_mode=None, no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A catalogue name, a folder or a Hugging Face id.")]


@app.command("list")
def list_models(output: options.Format = "table") -> None:
    """List the models of the catalogue and of the cache."""
    from jetspec_cli import console, environment
    from jetspec_cli.reporting import tables
    from jetspec_engine import registry

    options.check_format(output)
    cache = environment.cache_dir()
    found = [dict(entry) for entry in registry.model_store().list(cache)]
    if output == "json":
        console.data_json({"cache_dir": str(cache), "models": found})
        return
    columns = {"name": "name", "kind": "kind", "is_present": "here", "size_bytes": "size", "licence": "licence"}
    rows = [{**row, "size_bytes": tables.size(row.get("size_bytes"))} for row in found]
    console.data(tables.plain(columns, rows))
    console.talk(f"cache: {cache}")


@app.command("pull")
def pull(name: Name, output: options.Format = "table") -> None:
    """Download and convert a model once; nothing is downloaded again afterwards."""
    from jetspec_cli import console, environment
    from jetspec_cli.meter import Meter
    from jetspec_engine import registry

    options.check_format(output)
    with Meter() as meter:
        folder = registry.model_store().pull(
            name, environment.cache_dir(), lambda progress: meter.show(progress.label, progress.done, progress.total)
        )
    if output == "json":
        console.data_json({"name": name, "path": str(folder)})
    else:
        console.data(str(folder))


@app.command("inspect")
def inspect(
    target: options.Target = None, head: options.Head = None, output: options.Format = "table"
) -> None:  # fmt: skip
    """Check that a target and a draft head belong together, and show both configurations."""
    from jetspec_cli import console, environment
    from jetspec_cli.reporting import tables
    from jetspec_engine import registry
    from jetspec_engine.config import ServeConfig

    options.check_format(output)
    names = (target or ServeConfig.target, head or ServeConfig.head)
    pair: dict[str, Any] = dict(registry.model_store().inspect(*names, environment.cache_dir()))
    console.data_json(pair) if output == "json" else console.data(tables.nested(pair))
