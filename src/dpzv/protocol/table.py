"""The server's table: the latest embedding of every record from every device, and how old it is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Table", "gather"]


class Table:
    """Rows `h` of `sum(widths)` numbers for D records. An empty row is zeros (a public constant).

    `columns[m - 1]` are those of device m. Every entry carries the device time at which it was embedded: the round of
    the last release its device had applied. The delay of an entry is tau = t_m - that time (the paper's definition).
    """

    def __init__(self, D: int, widths: tuple[int, ...], *, accelerator: str, path: str = "") -> None:
        self.widths = widths
        offsets = [sum(widths[:m]) for m in range(len(widths) + 1)]
        self.columns = [slice(a, b) for a, b in pairwise(offsets)]
        if path:
            self.h = torch.from_file(path, shared=True, size=D * offsets[-1]).view(D, offsets[-1]).zero_()
        else:
            self.h = torch.zeros(D, offsets[-1], device=accelerator)
        self.times = np.zeros((len(widths), D), dtype=np.int32)

    def rows(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """A copy [B, sum(widths)] of the rows of `ids`, in which the caller replaces the columns of one device.

        Where there is only one device, nothing is read.
        """
        return gather(self.h, ids) if len(self.widths) > 1 else self.h.new_empty(len(ids), *self.widths)

    def put(self, m: int, ids: slice, h: NDArray[np.float32], time: int) -> None:
        """Store device m's embeddings of the records `ids`, made at device time `time`."""
        self.h[ids, self.columns[m - 1]] = torch.tensor(h, device=self.h.device)
        self.times[m - 1, ids] = time

    def keep(self, m: int, ids: NDArray[np.int64], rows: torch.Tensor, time: int) -> None:
        """Store device m's columns of `rows` [B, sum(widths)] for the records `ids`, made at device time `time`."""
        columns = self.columns[m - 1]
        if self.h.is_cpu:
            _items(self.h, columns)[ids] = _items(rows, columns)
        else:
            self.h[torch.tensor(ids, device=self.h.device), columns] = rows[:, columns]
        self.times[m - 1][ids] = time

    def delays(self, ids: NDArray[np.int64], now: list[int]) -> tuple[int, int]:
        """The sum and the largest of tau over the entries of `ids`; `now` [M] holds every device's present time t_m."""
        delays = np.array(now, np.int32)[:, None] - self.times.take(ids, axis=1)
        return int(np.add.reduce(delays, axis=None)), int(np.maximum.reduce(delays, axis=None))


def gather(x: torch.Tensor, ids: NDArray[np.int64]) -> torch.Tensor:
    """A copy of the rows `ids` of `x`; by numpy in main memory, where it takes a third of torch's time for a batch."""
    if x.is_cpu:
        return torch.from_numpy(x.numpy().take(ids, axis=0))
    return x.index_select(0, torch.tensor(ids, device=x.device))


def _items(rows: torch.Tensor, columns: slice) -> NDArray[np.void]:
    """A view of `columns` of `rows` with one item for each row: numpy moves items in half the time of rows."""
    values: NDArray[np.float32] = rows.numpy()
    kind = np.dtype((np.void, values.itemsize * (columns.stop - columns.start)))
    return np.ndarray(len(values), kind, values.data, values.itemsize * columns.start, values.strides[:1])
