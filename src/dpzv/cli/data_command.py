"""`dpzv data`: which data sets there are, how to get the ones that are not embedded, and drafts for one's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dpzv.cli.options import Json

__all__ = ["app"]

app = typer.Typer(
    help="Data sets: list them, fetch them, describe your own.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the data sets: records, devices, task, source, and whether they are here.

    Example: dpzv data list
    """
    from dpzv.data import catalogue

    found = [catalogue.describe(name) for name in catalogue.names()]
    if json:
        shown = ("name", "task", "n_classes", "records", "devices", "tabular", "source", "get")
        values = [
            {"card": {key: getattr(entry.card, key) for key in shown}, "present": entry.present, "where": entry.where}
            for entry in found
        ]
        typer.echo(msgspec.json.encode(values).decode())
        return
    for entry in found:
        card = entry.card
        typer.echo(f"{card.name:<14} {card.records:>7} records, {len(card.devices)} devices, {card.task}")
        typer.echo(f"{'':<14} {card.source}")
        typer.echo(f"{'':<14} {'here' if entry.present else 'not here'}: {entry.where}")


@app.command("fetch")
def fetch(
    name: Annotated[
        str, typer.Argument(help="The data set, e.g. mnist or imdb; or the text encoder all-mpnet-base-v2.")
    ],
    from_: Annotated[
        Path | None, typer.Option("--from", help="A folder or archive with the official files, instead of the network.")
    ] = None,
) -> None:
    """Fetch a data set or a text encoder, check its checksums and put it where recipes find it.

    Example: dpzv data fetch mnist --from ~/Downloads/mnist
    """
    from dpzv.data import catalogue

    typer.echo(catalogue.fetch(name, from_path=from_))


@app.command("describe")
def describe(
    file: Annotated[str, typer.Argument(help="A party's .csv, .csv.gz or .parquet file.")],
    id_: Annotated[str, typer.Option("--id", help="The column of ids.")] = "",
    label: Annotated[str, typer.Option("--label", help="The column of labels, if the file has them.")] = "",
) -> None:
    """Draft the [data] section of a party's TOML file. What it reads off records you replace by what is public.

    Example: dpzv data describe weather.csv --id flight
    """
    from dpzv.data.drafts import draft

    typer.echo(draft(file, id_, label), nl=False)
