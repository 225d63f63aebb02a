"""`dpzv recipes`: what can be trained, and with which settings."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

__all__ = ["recipes"]


def recipes(
    name: Annotated[str, typer.Argument(help="Show this recipe's file; without it, list all.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """List the shipped recipes, or show one of them with the reason for every line.

    Example: dpzv recipes mnist
    """
    from dpzv import recipes as shipped

    if name and json:
        typer.echo(msgspec.json.encode(shipped.tree(name)).decode())
    elif name:
        typer.echo(shipped.read(name).rstrip())
    elif json:
        typer.echo(msgspec.json.encode({n: shipped.title(n) for n in shipped.names()}).decode())
    else:
        width = max(len(n) for n in shipped.names())
        for n in shipped.names():
            typer.echo(f"{n:<{width}}  {shipped.title(n)}")
