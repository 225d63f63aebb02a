"""`dpzv audit`: attack a recipe's own server and gate, and compare the privacy loss found with the claim."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv.cli.options import JsonOutcome, Recipe, Sets, tree_of
from dpzv.cli.watching import warnings
from dpzv.errors import PrivacyRefused

if TYPE_CHECKING:
    from dpzv.attacks.audit import Audit, Finding

__all__ = ["audit"]


def audit(
    recipe: Recipe,
    set_: Sets,
    trials: Annotated[
        int,
        typer.Option(
            "--trials", min=1, help="Runs in each of two worlds, which differ in one record; more give a closer bound."
        ),
    ] = 10_000,
    whole: Annotated[
        int,
        typer.Option("--whole", min=0, help="Whole runs in each world, with starts, a crash and a resume; any method."),
    ] = 0,
    networked: Annotated[
        int,
        typer.Option("--networked", min=0, help="Whole runs between a server and devices that talk; a second each."),
    ] = 0,
    json: JsonOutcome = False,
) -> None:
    """Try to break a privacy claim with a list of attacks, over made-up records like those of the recipe or parties.

    Example: dpzv audit flights --trials 20000
    """
    from rich.console import Console

    from dpzv import config as configuration
    from dpzv.attacks.audit import audit as run_audit
    from dpzv.attacks.target import target_of
    from dpzv.cli.show import json_text
    from dpzv.runtime.run_plan import noise_of

    config = configuration.parse(tree_of(recipe, set_))
    target = target_of(config, noise_of(config))
    # devices of audited runs would warn of servers that die on purpose
    with warnings(quiet=True, of="dpzv"), Console(stderr=True, quiet=json).status("attacking") as status:

        def told(one: Finding) -> None:
            status.update(f"attacking; {one.strategy} is done")

        outcome = run_audit(target, trials, told, whole, networked)
    if json:
        sys.stdout.write(json_text(outcome))
    else:
        _show(outcome)
    if outcome.above:
        raise PrivacyRefused(
            f"the strategy '{outcome.strategy}' shows an epsilon of at least "
            f"{max(outcome.lower_bound, outcome.plain_bound):.4g} where {outcome.claim:g} is claimed; do not rely on "
            "the claim before the cause is found."
        )


def _show(outcome: Audit) -> None:
    """Print a table of the strategies, and below it what the bounds mean."""
    from rich.console import Console

    from dpzv.cli.show import columns

    names = ("strategy", "would catch", "runs", "epsilon >=", "by any curve >=", "claim", "verdict")
    rows = []
    for one in outcome.findings:
        figures = (f"{one.trials:,}", f"{one.lower_bound:.4g}", f"{one.plain_bound:.4g}", f"{one.claim:g}")
        rows.append([one.strategy, one.catches, *figures, "ABOVE" if one.above else "below"])
    console = Console()
    console.print(columns(names, rows, left=("strategy", "would catch", "verdict")))
    console.print()
    console.print(
        f"Bounds hold together at {100 * outcome.confidence:g} %, for replace-one at delta {outcome.delta_dp:g}, noise "
        f"source {outcome.noise_source}. The first bound supposes that the true curve is the claimed one with less "
        "noise, the second supposes nothing. An audit can refute a claim, not prove one.",
        highlight=False,
    )
