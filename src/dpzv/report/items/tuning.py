"""`tuning`: the trials of every row, and for each workload a file of the best settings, which later runs take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dpzv.durable import write_atomically
from dpzv.report.reproduced import ItemRuns, ItemTold, Line, budget_text, percent

__all__ = ["told"]


def told(runs: ItemRuns, figure: Path) -> ItemTold:
    """The table of all trials; a file of settings where every trial of a workload and accounting is finished."""
    header = ["workload", "accounting", "epsilon", "row", "trial", "validation accuracy, %", "settings", "state"]
    rows = []
    for line in runs.lines:
        cell = line.cell
        chosen = ", ".join(f"{key} = {value}" for key, value in (cell.setting or {}).items())
        what = [runs.title(cell.workload), cell.accounting, budget_text(cell.epsilon), cell.title, cell.case.name]
        rows.append([*what, line.text(lambda run: run.in_loop, percent), chosen, line.status or "-"])
    for workload, accounting in dict.fromkeys((line.cell.workload, line.cell.accounting) for line in runs.lines):
        own = [line for line in runs.lines if (line.cell.workload, line.cell.accounting) == (workload, accounting)]
        if all(line.finished for line in own):
            _write(own, figure.parent.parent / "tuning" / f"{workload}-{accounting}")
    note = "Trials are judged by the head in the loop on a tenth of the training records; no test record was looked at."
    return ItemTold(header, rows, [note], False)


def _write(lines: list[Line], path: Path) -> None:
    """The best settings as TOML, and all trials with their scores as lines of JSON."""
    best: dict[str, Any] = {}
    trials = []
    for line in lines:
        cell, score = line.cell, line.mean(lambda run: run.in_loop)
        trials.append({"row": cell.row, "trial": cell.case.name, "settings": cell.setting, "score": score})
        number = sum(other.cell.row == cell.row for other in lines)
        if cell.row not in best or (score or 0.0) > best[cell.row]["score"]:
            best[cell.row] = {"trials": number, "score": score or 0.0, "settings": cell.setting}
    write_atomically(path.with_suffix(".toml"), msgspec.toml.encode(best))
    write_atomically(path.with_suffix(".jsonl"), b"".join(msgspec.json.encode(trial) + b"\n" for trial in trials))
