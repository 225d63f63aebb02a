"""`dpzv tune`: the same number of trials for every method, judged on a validation split.

The trials train on records, so they are earlier runs of whatever goes on with what they found: the files that `tune`
writes name its folder as a parent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from dpzv.cli import options
from dpzv.cli.many_runs import Executed, execute, fail
from dpzv.declarations import OURS

if TYPE_CHECKING:
    from dpzv.config import Config, Tree

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
    score: float | None = None  # of the head in the loop, which targets are about, on validation records
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
    """Try settings drawn from a file, equally many for each method, and keep the best for `compare` and `train`.

    Example: dpzv tune digits --methods dpzv,vafl --trials 5 --space space.toml
    """
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.cli.show import json_text
    from dpzv.runtime import compute_cost
    from dpzv.runtime.grid import layered
    from dpzv.runtime.search import draw, space_of, tree_of, with_changes

    tree, spaces, epsilon = options.tree_of(asked.recipe, []), recipes.toml_file(asked.space), asked.epsilon
    chosen = recipes.settings(asked.recipe[0], asked.accounting, asked.settings)
    sets = list(map(configuration.set_key, asked.set_))
    changes = [*sets, {"data": {"holdout": HOLDOUT}, "privacy": {"accounting": asked.accounting}}]
    names, name = options.methods_of(asked.methods), Path(asked.recipe[0]).stem
    folder = asked.out or Path("runs") / f"tune-{name}"
    drawn: list[tuple[str, int, dict[str, Any]]] = []
    configs: dict[str, Config] = {}
    for method in names:
        last = {"train": {"method": method}, "privacy": {"epsilon": epsilon}}
        for number, setting in enumerate(draw(space_of(spaces, method), asked.trials, method), 1):
            drawn.append((method, number, setting))
            made = layered(tree, chosen, method, [*changes, tree_of(setting), last])
            configs[f"{method}-eps{epsilon:g}-trial{number}"] = _beside(configuration.parse(made), folder)
    earlier = dict.fromkeys(parent for config in configs.values() for parent in config.privacy.parents)
    base = configuration.parse(layered(tree, {}, "", [*changes, {"train": {"method": OURS}}]))
    prepare = partial(compute_cost.prepare, configs, base, folder, asked.jobs)
    if not asked.quiet:
        _warn(len(configs), epsilon)
    executed = execute(prepare, folder, quiet=asked.quiet or asked.json)
    judged = _judge(drawn, executed, folder)
    parents = (*earlier, str(folder.resolve()))
    _write(
        judged,
        with_changes(chosen, configuration.merge(_carried(sets), {"privacy": {"parents": list(parents)}})),
        _carried(sets),
        f"{name} at epsilon {epsilon:g}, {asked.accounting} accounting",
        folder,
    )
    _write_configurations(judged, list(configs.values()), parents, folder)
    if asked.json:
        sys.stdout.write(json_text(judged))
    elif not asked.quiet:
        _show(judged, folder)
    fail(executed.failures)


def _warn(trials: int, epsilon: float) -> None:
    """Say on standard error, before anything is spent, that trials on the same records add up."""
    if trials > 1 and math.isfinite(epsilon):
        typer.echo(
            f"dpzv: {trials} trials may spend epsilon {epsilon:g} each on the same records, and what they spend adds "
            "up; tune on made-up or public records like yours where you can.",
            err=True,
        )


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


def _beside(config: Config, folder: Path) -> Config:
    """The configuration of a trial, without the `folder` of the trials among its parents: they are no earlier runs."""
    parents = tuple(parent for parent in config.privacy.parents if Path(parent).resolve() != folder.resolve())
    return msgspec.structs.replace(config, privacy=msgspec.structs.replace(config.privacy, parents=parents))


def _best(judged: Sequence[_Trial]) -> list[_Trial]:
    """The best trial of each method; none of a method whose trials all failed."""
    best: dict[str, _Trial] = {}
    for trial in judged:
        best[trial.method] = min(best.get(trial.method, trial), trial, key=_Trial.order)
    return [trial for trial in best.values() if trial.score is not None]


def _carried(sets: list[Tree]) -> Tree:
    """What --set changed, without the keys that a tuning decides by itself."""
    from dpzv.config import merge

    decided = {"data.holdout", "privacy.accounting", "privacy.epsilon", "privacy.parents", "train.method"}
    kept = (tree for tree in sets if not decided & {f"{s}.{key}" for s, keys in tree.items() for key in keys})
    return reduce(merge, kept, {})


def _write(judged: list[_Trial], best: dict[str, Any], carried: Tree, what: str, folder: Path) -> None:
    """Write trials.jsonl, and best.toml: the settings the trials began from with each method's `best` on top.

    `carried` are those among them that --set changed. Where all trials failed there is nothing best.
    """
    from dpzv.config import merge
    from dpzv.durable import write_atomically
    from dpzv.runtime.search import settings_text, tree_of

    write_atomically(folder / "trials.jsonl", b"".join(msgspec.json.encode(trial) + b"\n" for trial in judged))
    if not _best(judged):
        return
    reasons = {f"all.{section}.{key}": "set by --set" for section, keys in carried.items() for key in keys}
    reasons["all.privacy.parents"] = "earlier runs on these records, the trials among them"
    for trial in _best(judged):
        best[trial.method] = merge(best.get(trial.method, {}), tree_of(trial.settings))
        tried = sum(other.method == trial.method for other in judged)
        told = f"trial {trial.number}, the best of {tried} on held-out training records: {_figure(trial)}"
        reasons |= {f"{trial.method}.{key}": told for key in trial.settings}
    title = f"Settings for `dpzv compare`, found by `dpzv tune` for {what}."
    trials = {trial.method: sum(other.method == trial.method for other in judged) for trial in _best(judged)}
    text = settings_text(title, best, reasons, what.partition(" ")[0], trials)
    write_atomically(folder / "best.toml", text.encode())


def _write_configurations(
    judged: list[_Trial], configs: Sequence[Config], parents: tuple[str, ...], folder: Path
) -> None:
    """Write train-METHOD.toml for each method: its best trial once more, as a run that counts all trials.

    It trains on the same records as the trials. Those that judged them stay out of it, since the choice of a trial may
    reveal them.
    """
    from dpzv.config import render
    from dpzv.durable import write_atomically

    change = msgspec.structs.replace
    for trial in _best(judged):
        config = configs[judged.index(trial)]
        going_on = change(config, privacy=change(config.privacy, parents=parents))
        write_atomically(folder / f"train-{trial.method}.toml", render(going_on).encode())


def _show(judged: Sequence[_Trial], folder: Path) -> None:
    """Print the trials, the best of each method first."""
    from dpzv.report.table_text import columned

    lines = [["method", "trial", "in loop", "refitted", "MB until target", "settings"]]
    order = list(dict.fromkeys(trial.method for trial in judged))
    for trial in sorted(judged, key=lambda trial: (order.index(trial.method), trial.order())):
        sent = "never" if trial.bytes_to_target is None else f"{trial.bytes_to_target / 1e6:.1f}"
        refitted = "-" if trial.refitted is None else f"{trial.refitted:.4f}"
        chosen = ", ".join(f"{key}={value}" for key, value in trial.settings.items())
        lines.append([trial.method, str(trial.number), _figure(trial), refitted, sent, chosen])
    typer.echo(columned(lines))
    if not _best(judged):
        typer.echo(f"\nAll trials failed, so there are no best settings; what was tried: {folder / 'trials.jsonl'}")
        return
    typer.echo(
        f"\nTrials and the best settings: {folder}\n"
        "Runs with best.toml or train-METHOD.toml count the trials as earlier runs on their records; "
        f"`dpzv privacy spent {folder}` says what the trials cost together."
    )


def _figure(trial: _Trial) -> str:
    return "failed" if trial.score is None else f"{trial.metric} {trial.score:.4f}"
