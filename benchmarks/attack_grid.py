"""All attacks on a recipe under every method: without noise, with the paper's noise, and with a true epsilon.

python -m benchmarks.attack_grid breast-cancer 3 attacks           in `attacks`: runs, rows.json, table.md, figure.svg
python -m benchmarks.attack_grid credit 3 attacks data.path=DIR    the same for another recipe, with KEY=VALUE

A setting of one method alone is METHOD:KEY=VALUE, such as dpzv:train.directions=32.

A second call goes on where the first one ended: runs that are finished are not trained again, and what attacks found is
kept as attacks.json in the folder of their run. Remove that file to attack again, and the folder to train again.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dpzv import recipes
from dpzv.attacks.findings import AttackRow
from dpzv.attacks.suite import attack_run
from dpzv.config import Config, merge, parse, set_key
from dpzv.declarations import METHODS
from dpzv.durable import write_atomically
from dpzv.report.figure_file import save, subplots
from dpzv.runtime.grid import layered
from dpzv.runtime.run import start

__all__ = ["attacked", "configs", "main", "table"]

CELLS = (("exact", float("inf")), ("paper", 10.0), ("paper", 1.0), ("exact", 10.0), ("exact", 1.0))
"""Kinds of noise and epsilon; the paper's noise is on the uplink for all methods but dpzv."""

KINDS = ("no noise", "published, 10", "published, 1", "true epsilon 10", "true epsilon 1")
"""Kinds of noise of the runs, from none to the most."""

LINES = {
    "direction": "#d55e00",
    "norm": "#cc79a7",
    "likelihood ratio": "#0072b2",
    "batch least squares": "#009e73",
    "sign": "#e69f00",
    "model completion, 10 a class": "#555555",
}
"""The attacks on labels that the figure shows, and their colours."""


def configs(name: str, seeds: int, assignments: list[str]) -> Iterator[tuple[str, Config]]:
    """The runs by the names of their folders."""
    for seed, (accounting, epsilon), method in itertools.product(range(seeds), CELLS, METHODS):
        settings = recipes.settings(name, accounting)
        last = {"train": {"method": method, "seed": seed}, "privacy": {"epsilon": epsilon}}
        own = [one.removeprefix(f"{method}:") for one in assignments if one.partition(":")[0] in (method, one)]
        tree = layered(recipes.tree(name), settings, method, [*map(set_key, own), last])
        yield f"{method}-{accounting}-{epsilon:g}-{seed}", parse(merge(tree, {"head": {"final": "refit"}}))


def kind_of(row: AttackRow) -> str:
    """Which of `KINDS` the noise of an attacked run is."""
    asked = row.run.asked_epsilon
    if asked is None:
        return KINDS[0]
    return f"{'published,' if row.epsilon is None else 'true epsilon'} {asked:g}"


def table(rows: list[AttackRow]) -> str:
    """The rows as a table for a page: the mean over the seeds with its standard error, by kind of noise.

    Bold scores leak in some seeds, and it is said in how many if not in all.
    """
    groups: dict[tuple[str, str], dict[str, list[AttackRow]]] = {}
    for row in sorted(rows, key=lambda row: list(METHODS).index(row.method)):
        if row.target != "server":
            name = row.attack if row.target == "labels" else f"{row.target}: {row.attack}"
            groups.setdefault((row.method, name), {}).setdefault(kind_of(row), []).append(row)
    header = ("method", "attack", "floor", *KINDS, "ceiling at 1")
    lines = [f"| {' | '.join(header)} |", "| --- |" + " --- |" * (len(header) - 1)]
    for (method, attack), kinds in groups.items():
        floor = statistics.fmean(row.floor for group in kinds.values() for row in group)
        scores = [_score(kinds[kind]) if kind in kinds else "-" for kind in KINDS]
        last = kinds.get(KINDS[-1], [])
        limit = "-" if not last else f"{min(row.ceiling for row in last):.3f}" if last[0].covered else "not covered"
        lines.append("| " + " | ".join((method, attack, f"{floor:.3f}", *scores, limit)) + " |")
    return "\n".join(lines) + "\n"


def _score(group: list[AttackRow]) -> str:
    scores, leaks = [row.score for row in group], sum(row.leaks for row in group)
    error = f" ± {statistics.stdev(scores) / len(scores) ** 0.5:.3f}" if len(scores) > 1 else ""
    found = f"{statistics.fmean(scores):.3f}{error}"
    some = "" if leaks in (0, len(group)) else f" ({leaks} of {len(group)})"
    return f"**{found}**{some}" if leaks else found


def draw_leakage(rows: list[AttackRow], path: Path) -> None:
    """Write the figure: what attacks on labels reach above their floor, by method and kind of noise.

    A dot is the mean over the seeds with the least and the largest, a black bar the most that a claim allows.
    """
    methods = list(dict.fromkeys(row.method for row in rows))
    figure, grid = subplots(1, len(methods), size=(2.9 * len(methods), 3.9), sharey=True, squeeze=False)
    panels = grid[0]
    for axes, method in zip(panels, methods, strict=True):
        for shift, (attack, colour) in enumerate(LINES.items()):
            for place, kind in enumerate(KINDS):
                found = [one for one in rows if (one.method, one.attack, kind_of(one)) == (method, attack, kind)]
                if found:
                    above, at = [one.score - one.floor for one in found], place + 0.11 * (shift - 2.5)
                    axes.plot([at, at], [min(above), max(above)], color=colour, linewidth=1.2)
                    axes.plot([at], [sum(above) / len(above)], "o", color=colour, markersize=4, label=attack)
                    limit = min(one.ceiling - one.floor for one in found)
                    if "true" in kind:
                        axes.plot([at], [limit], "_", color="black", markersize=7)
        axes.axhline(0.0, color="black", linewidth=0.6)
        axes.set_xticks(range(len(KINDS)), KINDS, rotation=40, ha="right", fontsize=8)
        axes.set_title(method, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("area under the curve above the floor")
    shown = {label: dot for axes in panels for dot, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    save(figure, path)


def attacked(place: Path, config: Config) -> list[AttackRow]:
    """The rows of one run, which is trained and attacked unless that has been done."""
    kept = place / "attacks.json"
    if not kept.exists():
        if not (place / "summary.json").exists():
            shutil.rmtree(place, ignore_errors=True)  # of a call that was ended in the middle
            start(config, place, lambda _: True, float("inf"), record_view=True)
        write_atomically(kept, msgspec.json.encode(attack_run(place)))
    return msgspec.json.decode(kept.read_bytes(), type=list[AttackRow])


def main(name: str, seeds: str, out: str, *assignments: str) -> int:
    """Train and attack all runs; what is finished in the folder is taken as it is."""
    folder, rows = Path(out), []
    for run, config in configs(name, int(seeds), list(assignments)):
        rows += attacked(folder / run, config)
        print(f"{run}: {len(rows)} rows", file=sys.stderr, flush=True)
        (folder / "rows.json").write_bytes(msgspec.json.encode(rows))
        (folder / "table.md").write_text(table(rows))
    draw_leakage(rows, folder / "figure.svg")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
