"""`credit`: will a client fail to pay the credit card bill? Two organisations know the clients, joined by id.

The columns are split as FATE splits them: the guest has the label, the last repayment status, bills and payments; the
host has the limit, the person and the earlier repayment status. All features are published as standard scores.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpzv.data.cards import Card
from dpzv.data.dataset import fingerprint_of
from dpzv.data.files import explained
from dpzv.data.frames import RawFrames, encoded
from dpzv.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CARD", "raw"]

_FILES = ("default_credit_hetero_guest.csv", "default_credit_hetero_host.csv")


def raw(folder: Path) -> RawFrames:
    """The raw frames of guest and host over the ids that both have, sorted by id as text, and the guest's y.

    Columns are named as in the files, x0 to x12 and x0 to x9.
    """
    guest, host = (_read(_find(folder, name)) for name in _FILES)
    both = guest.index.intersection(host.index).sort_values()
    alone = len(guest) + len(host) - 2 * len(both)
    if not len(both):
        raise DataError(f"{' and '.join(_FILES)} in {folder} should share ids, but have none in common; {CARD.get}.")
    guest, host = guest.loc[both], host.loc[both]
    if "y" not in guest or not guest["y"].isin([0, 1]).all():
        raise DataError(f"{_FILES[0]} in {folder} should have a column y of 0 and 1, but has not; {CARD.get}.")
    y = guest.pop("y").to_numpy(dtype=np.int64)
    frames = (guest.reset_index(drop=True), host.reset_index(drop=True))
    said = f" {alone} clients that only one of them knows are left out." if alone else ""
    values = [frame.to_numpy(dtype=np.float64) for frame in frames]
    digest = fingerprint_of(["\n".join(both).encode(), *values]).encode()
    return RawFrames(replace(CARD, source=CARD.source + said), frames, y, digest)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if os.path.isfile(candidate):
            return candidate
    raise DataError(f"data set 'credit' should lie in {folder}, which lacks {name}, gzipped or not; {CARD.get}.")


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    expected = f"{path} should be a csv file with a column id, but reading it"
    with explained(expected, f"{CARD.get}.", OSError, EOFError, ValueError):
        frame = pd.read_csv(path, dtype={"id": str}, index_col="id")
    text = [str(name) for name, dtype in frame.dtypes.items() if dtype.kind not in "fiub"]
    if text:
        raise DataError(f"{path} should hold numbers, but {', '.join(text)} holds text; {CARD.get}.")
    again = int(frame.index.duplicated().sum())
    if again or frame.index.hasnans:
        raise DataError(
            f"{path} should name every client once, but {again} rows repeat an id or have none; remove them."
        )
    return frame


CARD = Card(
    name="credit",
    task="binary",
    n_classes=2,
    records=30_000,
    devices=("guest", "host"),
    tabular=True,
    source="Clients of a bank in Taiwan in 2005 (UCI Default of Credit Card Clients), label 1 = did not pay, in the "
    "vertical split of FATE's examples.",
    get="set data.path to a folder with default_credit_hetero_guest.csv and default_credit_hetero_host.csv, gzipped or "
    "not, from examples/data of github.com/FederatedAI/FATE",
    load=lambda wanted: encoded(raw(wanted.folder), wanted.columns),
)
