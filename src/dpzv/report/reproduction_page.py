"""The page of a reproduction: every number that the paper prints beside ours, then every item's figure and table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import msgspec

from dpzv import recipes
from dpzv.durable import write_atomically
from dpzv.report.reproduced import NOT_YET, ItemRuns, ItemTold, Line, Shown, percent
from dpzv.report.table_text import paged
from dpzv.runtime.reproduction import SMOKE, Workload
from dpzv.validate import converted

__all__ = ["HEADER", "Number", "numbers", "tell_item", "verdict", "words", "write_page"]

HEADER = [
    "what",
    "the paper",
    "ours at the paper's accounting",
    "ours at a true guarantee",
    "untrained, same head",
    "verdict",
]

NEAR = 0.1
"""A byte count within a tenth of the paper's matches it."""


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One number of the paper, and the runs beside it; exactly one of the three measures is set.

    `accuracy` and `memory` (over the model's size) are ranges in which a figure matches. `never` says why no figure can
    be compared. `exact_item` names the item with the run at a true guarantee, if it is not `item`.
    """

    what: str
    paper: str
    item: str
    workload: str
    row: str
    epsilon: float = 1.0
    megabytes: float | None = None
    accuracy: tuple[float, float] | None = None
    memory: tuple[float, float] | None = None
    never: str = ""
    exact_item: str = ""

    def value(self, run: Shown) -> float:
        """The figure of a run that stands beside it."""
        if self.memory is not None:
            return float(run.known["peaks"][self.row] / run.known["weights"])
        return run.in_loop if self.accuracy is not None else run.until

    def form(self, value: float) -> str:
        """A figure of `value` as words: a share in per cent, megabytes, or a factor."""
        if self.memory is not None:
            return f"{value:.2f}"
        return f"{percent(value)} %" if self.accuracy is not None else f"{value:.1f}"


def numbers() -> list[Number]:
    """All of them, in the order of the paper."""
    return converted(recipes.reproduction("paper"), dict[str, list[Number]])["numbers"]


def words(number: Number, lines: Mapping[str, Sequence[Line]], workloads: Mapping[str, Workload]) -> list[str]:
    """The row of a number; `lines` are those of every item."""
    own, others = lines[number.item], lines.get(number.exact_item or number.item, ())
    paper = _line(number, own, number.row, "paper")
    frozen = _line(number, own, paper.cell.kind.frozen if paper else "frozen", "paper")
    exact = _line(number, others, number.row, "exact")
    cells = [_text(number, line) for line in (paper, exact, frozen)]
    if number.memory is not None:  # memory does not depend on an account, nor on what devices have learned
        cells[1:] = ["the same", "-"]
    elif frozen is not None and frozen.finished and number.megabytes is not None:
        cells[2] = f"{cells[2]} ({frozen.text(lambda run: run.in_loop, percent)} % in the end)"
    told = verdict(number, paper, workloads[number.workload])
    return [number.what, number.paper, *cells, told + _by_the_head(number, paper, frozen)]


def _by_the_head(number: Number, line: Line | None, frozen: Line | None) -> str:
    """What is added to a verdict where devices that never move get there with the same bytes or fewer."""
    if line is None or frozen is None or number.megabytes is None or not (line.finished and frozen.finished):
        return ""
    own, still = line.mean(number.value), frozen.mean(number.value)
    assert own is not None
    assert still is not None
    return "; frozen devices need no more" if still < math.inf and still <= own else ""


def verdict(number: Number, line: Line | None, workload: Workload) -> str:
    """Matches, better or worse; or why the two cannot be compared."""
    if number.never:
        return f"not comparable: {number.never}"
    if line is None or not line.finished:
        return "-"
    # other records have the paper's own networks, so memory is compared; a smoke test has one small layer
    if workload.substitute and (number.memory is None or number.workload == SMOKE):
        return f"not comparable: {workload.substitute}"
    value = line.mean(number.value)
    assert value is not None
    if number.megabytes is not None:
        word = _of_bytes(value, number.megabytes)
    else:
        low, high = number.accuracy or number.memory or (0.0, math.inf)
        less, more = ("worse", "better") if number.accuracy else ("better", "worse")
        word = "matches" if low <= value <= high else less if value < low else more
    return word if line.cell.trials or number.memory is not None else f"{word} (untuned)"


def _of_bytes(value: float, paper: float) -> str:
    if math.isinf(value) or math.isinf(paper):
        return "matches" if value == paper else "worse" if math.isinf(value) else "better"
    return "matches" if abs(value - paper) <= NEAR * paper else "better" if value < paper else "worse"


def _line(number: Number, lines: Sequence[Line], row: str, accounting: str) -> Line | None:
    """The line that stands beside a number, if the item has one."""
    row = "memory" if number.memory is not None else row
    for line in lines:
        cell = line.cell
        same = (cell.workload, cell.row, cell.accounting) == (number.workload, row, accounting)
        if same and (cell.epsilon == number.epsilon or row == "memory"):
            return line
    return None


def _text(number: Number, line: Line | None) -> str:
    if line is None:
        return "not run: cost"
    if not line.finished:
        return line.cell.missing or NOT_YET
    return line.text(number.value, number.form) + (f" ({line.status})" if line.status else "")


INTRODUCTION = """# Reproduction

This page is written by `dpzv reproduce` from run records, and by nothing else: a figure that was not run says so. The
main rows have the paper's networks from a random start. "Devices frozen" has the same head in the loop over devices
that never move, so what stands between it and the row that trains them is what training the devices adds. The column
"untrained, same head" has the frozen devices whose head moves by the rule of the row. At the paper's accounting no
figure is a guarantee ([fidelity](fidelity.md)). The exact account protects labels against all devices together. All
runs have simulated noise, which can be repeated. Rows that nobody tuned say so.

The records behind the published page are in the repository: `python -m benchmarks.reproduction_records unpack
runs/reproduce-full` brings them back, and the command goes on from there.

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
            rows.append(words(number, {name: one.lines for name, (one, _) in items.items()}, runs.workloads))
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
