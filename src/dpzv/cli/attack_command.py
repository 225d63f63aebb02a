"""`dpzv attack`: what curious devices can guess from what they saw in a run, beside what they can guess without it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv.cli.options import JsonOutcome
from dpzv.errors import ConfigError, PrivacyRefused

if TYPE_CHECKING:
    from rich.table import Table

    from dpzv.attacks.findings import AttackRow

__all__ = ["attack"]

FIGURES = (".svg", ".png")


def attack(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs that were trained with --record-view.")],
    devices: Annotated[
        str,
        typer.Option("--devices", help="Numbers of the curious devices, separated by commas; default: all of them."),
    ] = "",
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Draw the scores into this file, .svg or .png.")
    ] = None,
    json: JsonOutcome = False,
) -> None:
    """Attack runs with what their own devices saw, and show each score beside its floor and its ceiling.

    Example: dpzv attack runs/first --devices 1,2
    """
    from rich.console import Console

    from dpzv.attacks.readings import is_read, unread
    from dpzv.attacks.suite import attack_run
    from dpzv.cli.show import json_text

    chosen = _numbers(devices)
    found: dict[Path, list[AttackRow]] = {}
    if figure and figure.suffix not in FIGURES:
        raise ConfigError(f"--figure takes a file that ends in {' or '.join(FIGURES)}, got '{figure}'.")
    with Console(stderr=True, quiet=json).status("attacking") as status:
        for folder in folders:
            status.update(f"attacking {folder}")
            found[folder] = attack_run(folder, chosen)
    for folder, some in found.items():
        if not is_read(method := some[0].run.method):
            typer.echo(f"{folder}: {unread(method)}, so attacks on labels by them are left out.", err=True)
    rows = list(itertools.chain.from_iterable(found.values()))
    if figure:
        import msgspec

        from dpzv.report.attacks_figure import draw_attacks

        draw_attacks(msgspec.to_builtins(rows), figure)
    if json:
        sys.stdout.write(json_text(rows))
    else:
        _show(found)
    if broken := [row for row in rows if row.broken]:
        raise PrivacyRefused(
            f"the attack '{broken[0].attack}' reaches {broken[0].score:.3f} where the claim allows "
            f"{broken[0].ceiling:.3f}; do not rely on the claim before the cause is found."
        )


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := [word for word in words if not word.isdecimal()]:
        raise ConfigError(f"--devices takes numbers separated by commas, got '{wrong[0]}'; e.g. --devices 1,2.")
    return [int(word) for word in words]


def _show(found: dict[Path, list[AttackRow]]) -> None:
    """Print a table for each run, and below them what the figures mean."""
    from rich.console import Console

    console = Console()
    for folder, rows in found.items():
        run = rows[0].run
        promised = "nothing promised" if run.epsilon is None else f"epsilon {run.epsilon:g}"
        console.print(f"{folder}: {run.method} on {run.data}, seed {run.seed}, {promised}", highlight=False)
        console.print(_table(rows))
        console.print()
    console.print(
        "Scores are areas under the curve: 0.5 is blind guessing, 1 is certainty. Floor: the same attack without the "
        "run. Unseen: on records that were not part of it. Ceiling: the most that the claim allows. Intervals of one "
        "run hold together at 99 %. Not covered: what no claim is about. That an attack finds nothing does not mean "
        "that there is nothing to find.",
        highlight=False,
    )


def _table(rows: list[AttackRow]) -> Table:
    from dpzv.cli.show import columns

    names = ("attack", "score", "interval", "floor", "unseen", "ceiling", "verdict")
    lines = []
    for row in rows:
        interval = f"{row.interval[0]:.3f}-{row.interval[1]:.3f}"
        figures = (f"{row.score:.3f}", interval, f"{row.floor:.3f}", "" if row.unseen is None else f"{row.unseen:.3f}")
        lines.append([f"{row.target}: {row.attack}", *figures, f"{row.ceiling:.3f}", row.verdict])
    return columns(names, lines, left=("attack", "verdict"))
