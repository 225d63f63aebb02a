"""`tuning`: the trials of every row, and for each workload a file of the best settings, which later runs take."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dpzv.durable import write_atomically
from dpzv.report.reproduced import ItemRuns, ItemTold, Line, budget_text, percent
from dpzv.runtime.reproduction import Cell
from dpzv.runtime.reproduction_files import Tuned

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """One line a row: its best trial and the spread of all; files where every trial of an accounting is finished."""
    header = [*("workload", "accounting", "epsilon", "row", "trials"), "best, %", "worst, %", "settings of the best"]
    header.append("state")
    rows = []
    for own in _grouped(runs, lambda cell: (cell.workload, cell.accounting, cell.row)):
        cell, done = own[0].cell, [line for line in own if line.finished]
        what = [runs.title(cell.workload), cell.accounting, budget_text(cell.epsilon), cell.kind.title]
        if not done:
            rows.append([*what, "-", "-", "-", "-", own[0].status])
            continue
        best, worst = max(done, key=_score), min(done, key=_score)
        settings = ", ".join(f"{key} = {value}{_edge(own, key, value)}" for key, value in _setting(best).items())
        some = "-" if len(done) == len(own) else f"{len(done)} of {len(own)} trials"
        rows.append([*what, str(len(done)), percent(_score(best)), percent(_score(worst)), settings, some])
    for own in _grouped(runs, lambda cell: (cell.workload, cell.accounting)):
        if all(line.finished for line in own):
            _write(own, figure.parent.parent / "tuning" / f"{own[0].cell.workload}-{own[0].cell.accounting}")
    notes = [
        "Trials are judged by the head in the loop on a tenth of the training records; no test record was looked at.",
        "Where trials chose a length (train.passes), a run at a larger budget is longer, so that its noise is the "
        "same, up to the length of the item.",
        "A value marked * is the least or the largest of its list, so a wider list might do better.",
        "The published noise on rivals' embeddings depends on batch and length, so their trials choose these, too: "
        "twelve trials cover six or seven keys there, and four of DPZV's.",
        "Lists were changed where earlier trials stayed at chance or learned little: batch, length and clip of the "
        "rivals, steps of zeroth-order heads, steps of all heads on CIFAR-10. The earlier trials, on the same held-out "
        "records, are not counted here.",
    ]
    return ItemTold(header, rows, notes, False)


def _grouped(runs: ItemRuns, key: Callable[[Cell], Hashable]) -> list[list[Line]]:
    """The trials that have a key in common, in order."""
    groups: dict[Hashable, list[Line]] = {}
    for line in runs.lines:
        groups.setdefault(key(line.cell), []).append(line)
    return list(groups.values())


def _setting(line: Line) -> dict[str, Any]:
    """What was drawn for a trial."""
    return line.cell.setting or {}


def _edge(trials: Sequence[Line], key: str, value: Any) -> str:
    """`*` where the value is the least or the largest that these trials had."""
    values = {_setting(line)[key] for line in trials}
    return "*" if len(values) > 1 and value in (min(values), max(values)) else ""


def _score(line: Line) -> float:
    """The validation accuracy of a finished trial; 0 if its head diverged until its outputs were no numbers."""
    found = line.mean(lambda run: run.in_loop)
    return 0.0 if found is None or math.isnan(found) else found


def _write(lines: list[Line], path: Path) -> None:
    """The best settings as TOML, and all trials with their scores as lines of JSON."""
    best: dict[str, Tuned] = {}
    trials = []
    for line in lines:
        cell, score = line.cell, _score(line)
        trials.append({"row": cell.row, "trial": cell.case.name, "settings": _setting(line), "score": score})
        number = sum(other.cell.row == cell.row for other in lines)
        if cell.row not in best or score > best[cell.row].score:
            best[cell.row] = Tuned(number, cell.epsilon, score, _setting(line))
    write_atomically(path.with_suffix(".toml"), msgspec.toml.encode(best))
    write_atomically(path.with_suffix(".jsonl"), b"".join(msgspec.json.encode(trial) + b"\n" for trial in trials))
