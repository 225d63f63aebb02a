"""The root command, and the one place where errors become sentences and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
import typer.core

from dpzv import __version__
from dpzv.cli import audit, compare, data, keys, network, privacy, recipes, train, tune
from dpzv.errors import DpzvError

__all__ = ["app", "main"]

typer.core.HAS_RICH = False  # typer 0.20 would write defaults as "\\[default: 1]", for a colour mode not used here
app = typer.Typer(
    name="dpzv",
    help="Differentially private learning between organisations that hold different columns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("resume")(train.resume)
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("recipes")(recipes.recipes)
app.command("audit")(audit.audit)
app.command("server")(network.server)
app.command("device")(network.device)
app.command("predict")(network.predict)
app.add_typer(data.app, name="data")
app.add_typer(keys.app, name="keys")
app.add_typer(privacy.app, name="privacy")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dpzv {__version__}")
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
    except DpzvError as error:
        if "--debug" in sys.argv[1:]:
            raise
        _fail(str(error), error.exit_code)
    except Exception as error:
        if "--debug" in sys.argv[1:]:
            raise
        _fail(f"internal error: {type(error).__name__}: {error}; run again with --debug and report it.", 1)


def _fail(sentence: str, code: int) -> NoReturn:
    typer.echo(f"dpzv: {sentence}", err=True)
    sys.exit(code)
