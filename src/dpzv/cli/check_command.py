"""`dpzv check`: would a party, or the run that parties agree on, be refused? It asks nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dpzv.config import Config

__all__ = ["check"]

ALONE = "For this party alone, since it is about records; do not pass it on:"
OPEN = "Nothing here would be refused. How many records all parties share is not known before they meet."


def check(
    files: Annotated[list[Path], typer.Argument(help="Files of parties, of the agreed run, or of both.")],
) -> None:
    """Check a party's file or an agreed run: what a start would be refused for, and what is odd about its own records.

    Nothing is sent, and nothing is written.

    Example: dpzv check run.toml weather.toml
    """
    from dpzv.errors import ConfigError, DpzvError
    from dpzv.network.checking import findings_of
    from dpzv.network.party import load_party
    from dpzv.runtime.agreement import changed
    from dpzv.runtime.party_file import read_toml

    agreed: Config | None = None
    refused: list[DpzvError] = []
    for path in files:
        try:
            if "run" not in read_toml(path):
                agreed = _run(path)
                continue
            own = load_party(path, certified=False)
            if agreed is not None and (changes := changed(agreed, own.config)):
                raise ConfigError(
                    f"all parties must have one agreed run, but {changes} in the one that {path} names; give all "
                    "parties the same file."
                )
            found = findings_of(own)
        except DpzvError as error:
            refused.append(error)
            continue
        typer.echo(f"{path}:")
        for fact in found.facts:
            typer.echo(f"  {fact}")
        if found.odd:
            typer.echo(f"  {ALONE}")
            for sentence in found.odd:
                typer.echo(f"    {sentence}")
        if found.plain:
            typer.echo(f"  Nothing is odd about {', '.join(found.plain)}.")
        if found.refused is None:
            typer.echo(f"  {OPEN}")
        else:
            refused.append(found.refused)
    for later in refused[1:]:
        typer.echo(f"dpzv: {later}", err=True)
    if refused:
        raise refused[0]


def _run(path: Path) -> Config:
    """Check an agreed run by itself, as if its records were one batch, since it does not say how many there are."""
    from dpzv.runtime.party_file import agreed_run, check_agreed
    from dpzv.runtime.run_plan import batch_of, plan_of

    config = agreed_run(path)
    check_agreed(config)
    plan = plan_of(config, max(batch_of(config), config.privacy.min_batch), len(config.network.devices))
    typer.echo(f"{path}:")
    typer.echo(f"  The agreed run of {plan.M} devices: {', '.join(config.network.devices)}.")
    typer.echo("  Nothing in it would be refused by itself; check the parties' files, too.")
    return config
