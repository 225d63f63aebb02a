"""The verbs about runs: start them, compare, tune and rehearse them, look at them, attack them."""

from __future__ import annotations

import typer

from dpzv.cli import (
    attack_command,
    audit_command,
    compare_command,
    rehearse_command,
    report_command,
    reproduce_command,
    train_command,
    tune_command,
)

__all__ = ["add_run_verbs"]


def add_run_verbs(app: typer.Typer) -> None:
    """Add them to the root command, in the order of its help."""
    app.command("train")(train_command.train)
    app.command("resume")(train_command.resume)
    app.command("compare")(compare_command.compare)
    app.command("tune")(tune_command.tune)
    app.command("reproduce")(reproduce_command.reproduce)
    app.command("report")(report_command.report)
    app.command("watch")(report_command.watch)
    app.command("recipes")(train_command.recipes)
    app.command("rehearse")(rehearse_command.rehearse)
    app.command("audit")(audit_command.audit)
    app.command("attack")(attack_command.attack)
