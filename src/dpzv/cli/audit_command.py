"""`dpzv audit`: attack a recipe's own server and gate, and hold the privacy loss that shows against the claim."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from dpzv.cli.options import JsonOutcome, Recipe, Sets

if TYPE_CHECKING:
    from dpzv.attacks.audit import Audit, Finding

__all__ = ["audit"]


def audit(
    recipe: Recipe,
    set_: Sets,
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="Runs in each of the two worlds; more give a closer bound.")
    ] = 10_000,
    json: JsonOutcome = False,
) -> None:
    """Try to break a recipe's privacy claim with a list of attacks, over made-up records.

    Example: dpzv audit flights --trials 20000
    """
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.attacks.audit import audit as run_audit
    from dpzv.attacks.target import target_of
    from dpzv.cli.show import json_text
    from dpzv.errors import PrivacyRefused
    from dpzv.runtime.run_plan import noise_of

    tree = recipes.tree(recipe)
    for assignment in set_:
        tree = configuration.merge(tree, configuration.set_key(assignment))
    config = configuration.parse(tree)
    target = target_of(config, noise_of(config))
    with _waiting(json) as observe:
        outcome = run_audit(target, trials, observe)
    if json:
        sys.stdout.write(json_text(outcome))
    else:
        _show(outcome)
    if outcome.above:
        raise PrivacyRefused(
            f"the strategy '{outcome.strategy}' shows an epsilon of at least {outcome.lower_bound:.4g} where "
            f"{outcome.claim:g} is claimed; do not rely on the claim before the cause is found."
        )


@contextmanager
def _waiting(quiet: bool) -> Iterator[Callable[[Finding], None]]:
    """Says on standard error how far the audit is."""
    if quiet:
        yield lambda finding: None
        return
    from rich.console import Console

    with Console(stderr=True).status("attacking") as status:
        yield lambda finding: status.update(f"attacking; {finding.strategy} is done")


def _show(outcome: Audit) -> None:
    """A table of the strategies, and what follows in a sentence."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("strategy", "would catch", "runs", "epsilon >=", "claim", "verdict"):
        table.add_column(name, justify="left" if name in ("strategy", "would catch", "verdict") else "right")
    for finding in outcome.findings:
        table.add_row(
            finding.strategy,
            finding.catches,
            f"{finding.trials:,}",
            f"{finding.lower_bound:.4g}",
            f"{finding.claim:g}",
            "ABOVE" if finding.above else "below",
        )
    console = Console()
    console.print(table)
    console.print()
    console.print(
        f"Bounds hold together at {100 * outcome.confidence:g} %, for replace-one at delta {outcome.delta_dp:g}, noise "
        f"source {outcome.noise_source}. An audit can refute a claim, not prove one; starts are not attacked.",
        highlight=False,
    )
