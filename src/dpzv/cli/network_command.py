"""`dpzv server`, `dpzv device` and `dpzv predict`: training and predictions between organisations."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from dpzv.network.party import Party

__all__ = ["device", "predict", "server"]

PartyFile = Annotated[Path, typer.Argument(help="This party's TOML file.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Log warnings and errors only.")]


def server(
    party: PartyFile,
    status: Annotated[
        bool, typer.Option("--status", help="Show where the run is; exit code 5 if the server does not run.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary or the status as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Hold the labels and train with the devices; after a crash or a stop the same command continues the run.

    Example: dpzv server server.toml
    """
    from dpzv.cli.show import result
    from dpzv.errors import ConfigError
    from dpzv.network.party import load_party
    from dpzv.network.serving import serve
    from dpzv.network.status import read_status
    from dpzv.runtime.run_folder import RunFolder

    own = load_party(party)
    if status:
        found = read_status(own.out)
        typer.echo(msgspec.json.encode(found).decode() if json else "\n".join(found.lines()))
        raise typer.Exit(0 if found.healthy else 5)
    if not own.file.listen:
        raise ConfigError(f"{party} is a device's file (it has `server`); run `dpzv device {party}`.")
    _log(quiet)
    folder = RunFolder.of_run(own.out, own.config)
    summary = asyncio.run(serve(own, folder, lambda started: _on_signal(started.stop)))
    if summary is None:
        typer.echo("dpzv: stopped; everything up to here is kept, and the same command continues the run.", err=True)
        raise typer.Exit(130)
    result({"": summary}, own.out, quiet=quiet, json=json)


def device(
    party: PartyFile,
    stay: Annotated[bool, typer.Option("--stay", help="Stay after training, to take part in predictions.")] = False,
    quiet: Quiet = False,
) -> None:
    """Hold features and take part in the server's run; after a crash or a stop the same command continues it.

    Example: dpzv device weather.toml
    """
    from dpzv.errors import ConfigError
    from dpzv.network.party import load_party

    own = load_party(party)
    if not own.file.server:
        raise ConfigError(f"{party} is the server's file (it has `listen`); run `dpzv server {party}`.")
    _log(quiet)
    asyncio.run(_take_part(own, stay))


def predict(
    party: PartyFile,
    ids: Annotated[Path, typer.Option("--ids", help="A text file with one record id a line.")],
    out: Annotated[
        Path, typer.Option("--out", help="The CSV file to write: ids, predictions, probabilities of classes.")
    ],
    seconds: Annotated[float, typer.Option("--seconds", help="How long to wait for the devices.")] = 120.0,
    quiet: Quiet = False,
) -> None:
    """Predict records with the trained parties online (`dpzv device --stay`); run by the server's operator.

    Ids that a device has no record of are left out, and named in a file beside the predictions.

    Example: dpzv predict server.toml --ids new.txt --out predictions.csv
    """
    from dpzv.data.party_records import read_ids
    from dpzv.network.party import load_party
    from dpzv.network.predict import Predictor
    from dpzv.network.prediction_files import write_predictions, write_unknown
    from dpzv.runtime.run_folder import RunFolder

    own = load_party(party)
    _log(quiet)
    names = read_ids(ids)
    labels = own.labels()
    predictor = Predictor(own.config, labels, RunFolder.existing(own.out), partial(own.hashed, names))
    output = asyncio.run(predictor.run(own.listener(), seconds))
    asked = own.data.labels
    assert asked is not None
    known = (name for name, here in zip(names, predictor.known, strict=True) if here)
    write_predictions(out, asked, known, output)
    typer.echo(f"{len(output)} predictions: {out}. They stay with the server; no privacy claim covers them.")
    if missing := write_unknown(out, names, own.config.network.devices, predictor.unknown):
        left = len(names) - len(output)
        typer.echo(f"{left} ids are not in every device's file and were left out: {missing}.", err=True)


async def _take_part(own: Party, stay: bool) -> None:
    from dpzv.network.device_party import DeviceParty

    device = DeviceParty(own.config, own.features(), own.out)
    _on_signal(device.stop)
    await device.run(own.connector(), stay=stay)


def _on_signal(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _log(quiet: bool) -> None:
    from dpzv.network.logs import JsonLines

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("dpzv")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
