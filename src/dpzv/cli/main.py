"""The root command, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
import typer.core

from dpzv.cli import check_command, data_command, keys_command, network_command, privacy_command, weights_command
from dpzv.cli.run_verbs import add_run_verbs
from dpzv.errors import DpzvError
from dpzv.version import VERSION

__all__ = ["app", "main"]

typer.core.HAS_RICH = False  # else typer 0.20 writes defaults as "\\[default: 1]", for a colour mode not used here
app = typer.Typer(
    name="dpzv",
    help="Differentially private learning between organisations that hold different columns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_run_verbs(app)
app.command("check")(check_command.check)
app.command("server")(network_command.server)
app.command("device")(network_command.device)
app.command("predict")(network_command.predict)
app.add_typer(data_command.app, name="data")
app.add_typer(keys_command.app, name="keys")
app.add_typer(privacy_command.app, name="privacy")
app.add_typer(weights_command.app, name="show")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dpzv {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Differentially private learning between organisations that hold different columns.

    Example: dpzv train flights --out runs/first
    """


def main() -> None:
    """Run the command line; every failure is one sentence on standard error and its exit code."""
    try:
        app()
    except Exception as error:
        if "--debug" in sys.argv[1:]:
            raise
        sentence, code = f"internal error: {type(error).__name__}: {error}; run again with --debug and report it.", 1
        if isinstance(error, DpzvError):
            sentence, code = str(error), error.exit_code
        typer.echo(f"dpzv: {sentence}", err=True)
        sys.exit(code)
