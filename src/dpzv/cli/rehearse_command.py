"""`dpzv rehearse`: the parties' own files in one process, before anybody else is involved."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpzv.cli.options import Sets
from dpzv.cli.train_command import ALONE, Quiet, refuse_used, runs_beside, trained

if TYPE_CHECKING:
    from dpzv.runtime.rehearsal import Rehearsed

__all__ = ["rehearse", "suspicions"]

FEW_TESTS = 100
"""With fewer test records a share has a standard deviation of up to 5 %."""
TOO_GOOD = 0.999
"""An AUC, accuracy or R^2 that a party alone does not reach without the label."""
LOOK = (
    "This process reads the records of all parties, so a rehearsal is a look at them by whoever runs it: use made-up "
    "records, or extracts that one person may see. Its noise can be repeated, so it guarantees nothing."
)


def rehearse(
    files: Annotated[
        list[str], typer.Argument(help="The agreed run's TOML file, then the files of the server and of every device.")
    ],
    set_: Sets,
    out: Annotated[Path | None, typer.Option("--out", help="The folder; default runs/rehearsal-TIME.")] = None,
    quiet: Quiet = False,
) -> None:
    """Rehearse a run with the parties' own files: align, train, predict, beside untrained devices and each party alone.

    Nothing is sent, no keys are needed, and the parties' own folders are not touched.

    Example: dpzv rehearse run.toml server.toml bank.toml shop.toml
    """
    from dpzv import config as configuration
    from dpzv.cli.show import result
    from dpzv.network.prediction_files import write_predictions
    from dpzv.runtime.rehearsal import predicted, rehearsed, rehearsed_tree

    folder = out or Path("runs") / f"rehearsal-{time.strftime('%Y%m%d-%H%M%S')}"
    refuse_used(folder, "frozen", "alone-*")
    changes = [*map(configuration.set_key, set_), {"noise": {"source": "seeded"}}]
    tree = reduce(configuration.merge, changes, rehearsed_tree(files))
    config = configuration.parse(tree)
    shared = rehearsed(config)
    if not quiet:
        typer.echo(f"{LOOK}\n")
        _tell_shared(shared)
    summaries = trained(list(runs_beside("frozen,alone", tree, config)), folder, quiet=quiet)
    result(summaries, folder, quiet=quiet, json=False)
    if not quiet:
        for sentence in suspicions(summaries):
            typer.echo(f"{sentence}\n")
    output = predicted(config, shared.data, folder)
    write_predictions(folder / "predictions.csv", shared.labels, shared.test_ids, output)
    if not quiet:
        typer.echo(f"Predictions of the {len(shared.test_ids)} test records: {folder / 'predictions.csv'}")


def _tell_shared(shared: Rehearsed) -> None:
    """Print how many rows each party has, what is odd about its values, and how many records all parties share."""
    from dpzv.report.table_text import columned

    lines = [["party", "rows", "known to the server"]]
    parties = zip(("the server", *shared.data.devices), shared.found.sizes, shared.found.with_server, strict=True)
    lines += [[name, f"{rows:,}", f"{known:,}"] for name, rows, known in parties]
    typer.echo(columned(lines))
    for name, sentences in shared.odd.items():
        for sentence in sentences:
            typer.echo(f"{name}: {sentence}")
    trained, tested = len(shared.data.y_train), len(shared.test_ids)
    typer.echo(f"All parties share {shared.found.n:,} records: {trained:,} to train on, {tested:,} to test on.")
    for sentence in remarks(shared):
        typer.echo(sentence)
    typer.echo("")


def remarks(shared: Rehearsed) -> list[str]:
    """Sentences about records that are few, and about parties whose ids the server mostly does not know."""
    found, named = shared.found, shared.data.devices
    told = [
        f"{name}: {rows - known:,} of its {rows:,} ids, more than half, are unknown to the server; compare how both "
        "write ids, unless you expect this."
        for name, rows, known in zip(named, found.sizes[1:], found.with_server[1:], strict=True)
        if known * 2 < rows
    ]
    if (tested := len(shared.test_ids)) < FEW_TESTS:
        told.append(f"Only {tested} records are tested on, so all test figures are rough.")
    return told


def suspicions(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A sentence for each party that alone predicts next to all labels, which its columns may give away."""
    from dpzv.metrics import headline, headline_text

    told = []
    for name, summary in summaries.items():
        metric, value = headline(summary)
        if name.endswith(ALONE) and metric != "loss" and value >= TOO_GOOD:
            told.append(
                f"{name} reaches {headline_text(summary)}: perhaps one of its columns is the label, or became known "
                "only with it; look for it before you trust these figures."
            )
    return told
