"""`dpzv tune`: the same number of trials for every method, judged on a validation split."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dpzv.cli import options
from dpzv.cli.compare_command import Executed, execute, fail

if TYPE_CHECKING:
    from dpzv.config import Config

__all__ = ["tune"]

HOLDOUT = 0.1
"""The share of the training records that judges the trials; the test records are not used."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """The options of `dpzv tune`."""

    recipe: options.Recipe
    set_: options.SetsOfAll
    space: Annotated[Path, typer.Option("--space", help="TOML: for each method, keys with lists of values.")]
    out: Annotated[Path | None, typer.Option("--out", help="The folder; default runs/tune-RECIPE.")] = None
    methods: options.Methods = options.ALL
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials of each method.")] = 10
    epsilon: Annotated[float, typer.Option("--epsilon", help="The budget of each trial; inf: none.")] = 1.0
    accounting: options.Account = "exact"
    settings: options.Settings = None
    jobs: options.Jobs = 0
    json: options.JsonOutcome = False
    quiet: options.Quiet = False


class _Trial(msgspec.Struct, frozen=True):
    """One trial; the figures are `None` if it failed."""

    method: str
    number: int
    settings: dict[str, Any]
    config_hash: str
    metric: str | None = None
    score: float | None = None  # of the head in the loop on the validation records: what targets are measured on
    refitted: float | None = None
    bytes_to_target: float | None = None
    failure: str = ""

    def order(self) -> tuple[bool, float, float, int]:
        """Best first: the score, then fewer bytes to the target, then the earlier trial."""
        if self.score is None:
            return True, 0.0, 0.0, self.number
        score = self.score if self.metric == "loss" else -self.score
        return False, score, self.bytes_to_target or float("inf"), self.number


@options.with_options(Tuning)
def tune(asked: Tuning) -> None:
    """Try settings drawn from a file, as many for each method, and keep the best as settings for `compare`.

    Example: dpzv tune digits --methods dpzv,vafl --trials 5 --space space.toml
    """
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.cli.show import json_text
    from dpzv.runtime.grid import layered
    from dpzv.runtime.search import draw, space_of, tree_of

    tree, spaces, epsilon = recipes.tree(asked.recipe), recipes.toml_file(asked.space), asked.epsilon
    chosen = recipes.settings(asked.recipe, asked.accounting, asked.settings)
    always = {"data": {"holdout": HOLDOUT}, "privacy": {"accounting": asked.accounting}}
    changes = [*map(configuration.set_key, asked.set_), always]
    names = options.methods_of(asked.methods)
    drawn: list[tuple[str, int, dict[str, Any]]] = []
    configs: dict[str, Config] = {}
    for method in names:
        last = {"train": {"method": method}, "privacy": {"epsilon": epsilon}}
        for number, setting in enumerate(draw(space_of(spaces, method), asked.trials, method), 1):
            drawn.append((method, number, setting))
            made = layered(tree, chosen, method, [*changes, tree_of(setting), last])
            configs[f"{method}-eps{epsilon:g}-trial{number}"] = configuration.parse(made)
    name = Path(asked.recipe).stem
    folder = asked.out or Path("runs") / f"tune-{name}"
    base = configuration.parse(layered(tree, {}, "", [*changes, {"train": {"method": "dpzv"}}]))
    executed = execute(configs, base, folder, asked.jobs, quiet=asked.quiet or asked.json)
    judged = _judge(drawn, executed, folder)
    _write(judged, chosen, names, f"{name} at epsilon {epsilon:g}, {asked.accounting} accounting", folder)
    if asked.json:
        sys.stdout.write(json_text(judged))
    elif not asked.quiet:
        _show(judged, folder)
    fail(executed.failures)


def _judge(drawn: list[tuple[str, int, dict[str, Any]]], executed: Executed, folder: Path) -> list[_Trial]:
    """The trials with the figures that are in the summaries of their runs."""
    from dpzv.metrics import headline
    from dpzv.runtime.grid import config_hash

    failures = {failure.name: failure.sentence for failure in executed.failures}
    judged = []
    for (method, number, setting), job in zip(drawn, executed.jobs, strict=True):
        trial = _Trial(method, number, setting, config_hash(job.config), failure=failures.get(job.name, ""))
        place = folder / "runs" / job.key / "summary.json"
        if place.exists():
            summary = msgspec.json.decode(place.read_bytes())
            metric, score = headline(summary["private_head"])
            passed = summary["targets"].get(str(max(job.config.train.target, default=None)), {})
            figures = {"metric": metric, "score": score, "refitted": headline(summary)[1]}
            trial = msgspec.structs.replace(trial, **figures, bytes_to_target=passed.get("bytes"))
        judged.append(trial)
    return judged


def _write(judged: list[_Trial], settings: dict[str, Any], methods: list[str], what: str, folder: Path) -> None:
    """Write trials.jsonl, and best.toml: the settings the trials began from with each method's best on top."""
    from dpzv.config import merge
    from dpzv.durable import write_atomically
    from dpzv.runtime.search import settings_text, tree_of

    write_atomically(folder / "trials.jsonl", b"".join(msgspec.json.encode(trial) + b"\n" for trial in judged))
    best = dict(settings)
    reasons: dict[str, str] = {}
    for method in methods:
        own = sorted((trial for trial in judged if trial.method == method), key=_Trial.order)
        if own[0].score is None:
            continue
        best[method] = merge(best.get(method, {}), tree_of(own[0].settings))
        told = f"trial {own[0].number}, the best of {len(own)} on held-out training records: {_figure(own[0])}"
        reasons |= {f"{method}.{key}": told for key in own[0].settings}
    title = f"Settings for `dpzv compare`, found by `dpzv tune` for {what}."
    write_atomically(folder / "best.toml", settings_text(title, best, reasons).encode())


def _show(judged: Sequence[_Trial], folder: Path) -> None:
    """Print the trials, the best of each method first."""
    from dpzv.report.comparison_table import columned

    lines = [["method", "trial", "in loop", "refitted", "MB until target", "settings"]]
    order = list(dict.fromkeys(trial.method for trial in judged))
    for trial in sorted(judged, key=lambda trial: (order.index(trial.method), trial.order())):
        sent = "never" if trial.bytes_to_target is None else f"{trial.bytes_to_target / 1e6:.1f}"
        refitted = "-" if trial.refitted is None else f"{trial.refitted:.4f}"
        chosen = ", ".join(f"{key}={value}" for key, value in trial.settings.items())
        lines.append([trial.method, str(trial.number), _figure(trial), refitted, sent, chosen])
    typer.echo(columned(lines))
    typer.echo(f"\nTrials and the best settings: {folder}")


def _figure(trial: _Trial) -> str:
    return "failed" if trial.score is None else f"{trial.metric} {trial.score:.4f}"
