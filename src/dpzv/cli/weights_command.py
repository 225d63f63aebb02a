"""`dpzv show weights`: the weights of linear devices by column and category, from a run's folder or a device's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv.cli.options import Json
from dpzv.errors import ConfigError

if TYPE_CHECKING:
    from dpzv.data.columns import Column
    from dpzv.runtime.scorecard import Scorecard

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Show what a run has learned.")


@app.callback()
def root() -> None:
    """Show what a run has learned."""


@app.command()
def weights(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run, or of a device of a network.")],
    device: Annotated[int, typer.Option("--device", min=0, help="Only this device; 0: all in the folder.")] = 0,
    json: Json = False,
) -> None:
    """Show the weights of linear devices as a scorecard: what each value of each column adds to the output.

    Example: dpzv show weights runs/first --device 2
    """
    from dpzv.cli.show import json_text
    from dpzv.runtime.scorecard import scorecard

    files = {int(file.stem.removeprefix("device-")): file for file in (folder / "weights").glob("device-*.safetensors")}
    chosen = {m: file for m, file in sorted(files.items()) if device in (0, m)}
    if not chosen:
        there = f"those of device {', '.join(map(str, sorted(files)))}" if files else "none"
        raise ConfigError(
            f"expected the weights of a finished device{f' {device}' if device else ''} in {folder}, got {there}; give "
            "the folder of a finished run or, of a networked run, that of the device."
        )
    cards = [scorecard(file, m, _columns(folder, m)) for m, file in chosen.items()]
    if json:
        typer.echo(json_text(cards), nl=False)
        return
    for card in cards:
        _table(card)


def _columns(folder: Path, m: int) -> tuple[Column, ...]:
    """The public encoding of device m's columns, from the run's configuration or from the device's own state."""
    from dpzv.data.columns import of_device
    from dpzv.network.device_folder import DeviceFolder
    from dpzv.runtime.run_folder import RunFolder

    own = DeviceFolder(folder)
    if own.has_state:
        return own.state().columns
    return of_device(RunFolder.existing(folder).config().data.columns, m)


def _table(card: Scorecard) -> None:
    from rich.console import Console
    from rich.markup import escape

    from dpzv.cli.show import columns

    outputs = ["weight"] if len(card.intercept) == 1 else [f"output {i}" for i in range(1, len(card.intercept) + 1)]
    rows = [("intercept", "always", *(f"{number:+.4f}" for number in card.intercept), "")]
    for line in card.lines:
        names = escape(line.column), escape(line.part)
        rows.append((*names, *(f"{number:+.4g}" for number in line.weights), f"{line.effect:.4f}"))
    console = Console()
    console.print(f"Device {card.device}", highlight=False, markup=False)
    console.print(columns(("column", "part", *outputs, "at most"), rows, left=("column", "part")), highlight=False)
    console.print()
