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
from dpzv.report.attacks_figure import KINDS, draw_leakage, kind_of
from dpzv.runtime.grid import layered
from dpzv.runtime.run import start

__all__ = ["attacked", "configs", "main", "table"]

CELLS = (("exact", float("inf")), ("paper", 10.0), ("paper", 1.0), ("exact", 10.0), ("exact", 1.0))
"""Kinds of noise and epsilon; the paper's noise is on the uplink for all methods but dpzv."""


def configs(name: str, seeds: int, assignments: list[str]) -> Iterator[tuple[str, Config]]:
    """The runs by the names of their folders."""
    for seed, (accounting, epsilon), method in itertools.product(range(seeds), CELLS, METHODS):
        settings = recipes.settings(name, accounting)
        last = {"train": {"method": method, "seed": seed}, "privacy": {"epsilon": epsilon}}
        own = [one.removeprefix(f"{method}:") for one in assignments if one.partition(":")[0] in (method, one)]
        tree = layered(recipes.tree(name), settings, method, [*map(set_key, own), last])
        yield f"{method}-{accounting}-{epsilon:g}-{seed}", parse(merge(tree, {"head": {"final": "refit"}}))


def table(rows: list[AttackRow]) -> str:
    """The rows as a table for a page: the mean over the seeds with its standard error, by kind of noise.

    Bold scores leak in some seeds, and it is said in how many if not in all.
    """
    groups: dict[tuple[str, str], dict[str, list[AttackRow]]] = {}
    for row in sorted(rows, key=lambda row: list(METHODS).index(row.method)):
        if row.target != "server":
            name = row.attack if row.target == "labels" else f"{row.target}: {row.attack}"
            groups.setdefault((row.method, name), {}).setdefault(kind_of(msgspec.to_builtins(row)), []).append(row)
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
    draw_leakage([msgspec.to_builtins(row) for row in rows], folder / "figure.svg")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
