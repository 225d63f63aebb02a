"""The page of a reproduction: the table against the paper, then every item with its figure and its table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import msgspec

from dpzv.durable import write_atomically
from dpzv.report.paper_numbers import HEADER, numbers, words
from dpzv.report.reproduced import ItemRuns, ItemTold
from dpzv.report.table_text import paged
from dpzv.runtime.reproduction import SMOKE

__all__ = ["tell_item", "write_page"]

INTRODUCTION = """# Reproduction

This page is written by `dpzv reproduce` from run records, and by nothing else: a figure that was not run says so. The
main rows have the paper's networks from a random start. "Devices frozen" has the same head in the loop over devices
that never move, so what stands between it and DPZV is what training the devices adds. At the paper's accounting no
figure is a guarantee ([fidelity](fidelity.md)). The exact account protects labels against all devices together. All
runs have simulated noise, which can be repeated. Rows that nobody tuned say so.

    {command}
"""


def tell_item(runs: ItemRuns, out: Path) -> ItemTold:
    """What the script of an item tells; its figure and its table are written to `out`."""
    script = import_module(f"dpzv.report.items.{runs.name.replace('-', '_')}")
    told: ItemTold = script.told(runs, out / "figures" / runs.name)
    write_atomically(out / "tables" / f"{runs.name}.md", told.page().encode())
    return told


def write_page(items: Mapping[str, tuple[ItemRuns, ItemTold]], command: str, file: Path) -> None:
    """Write the whole page: what `command` found about `items`."""
    parts = [INTRODUCTION.format(command=command), "## Every number the paper prints\n"]
    rows = []
    for number in numbers():
        if number.item in items:
            runs = items[number.item][0]
            if any(line.cell.workload == SMOKE for line in runs.lines):
                number = msgspec.structs.replace(number, workload=SMOKE, epsilon=1.0)
            rows.append(words(number, runs.lines, runs.workloads))
    used = {line.cell.workload for runs, _ in items.values() for line in runs.lines}
    workloads = {name: one for runs, _ in items.values() for name, one in runs.workloads.items() if name in used}
    notes = [f"{one.title}: {one.substitute}." for one in workloads.values() if one.substitute]
    notes += ["`-` as a verdict: there is no run to judge. Megabytes include the first fill of the table."]
    parts.append(paged(HEADER, rows, [], notes))
    for name, (runs, told) in items.items():
        figure = f"![{runs.item.title}](figures/{name}.svg)\n" if told.drawn else ""
        where = f" ({runs.item.paper} of the paper)" if runs.item.paper else ""
        parts.append(f"## {name}: {runs.item.title}{where}\n\n{figure}\n{told.page()}")
    write_atomically(file, "\n".join(parts).encode())
