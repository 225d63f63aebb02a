"""`dpzv data`: which data sets there are, and how to get the ones that are not embedded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dpzv.cli.options import Json

__all__ = ["app"]

app = typer.Typer(help="Data sets: list them, fetch them.", no_args_is_help=True, rich_markup_mode=None)


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
    name: Annotated[str, typer.Argument(help="The data set, e.g. mnist or cifar10.")],
    from_: Annotated[
        Path | None, typer.Option("--from", help="A folder or archive with the official files, instead of the network.")
    ] = None,
) -> None:
    """Fetch a data set, check its checksums and put it where recipes find it.

    Example: dpzv data fetch mnist --from ~/Downloads/mnist
    """
    from dpzv.data import catalogue

    typer.echo(catalogue.fetch(name, from_path=from_))
