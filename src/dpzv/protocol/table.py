"""The server's table: the latest embedding of every record from every device, and how old it is."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.protocol.gather import gather

__all__ = ["Table"]


class Table:
    """Rows `h` of `sum(widths)` numbers for D records. An empty row is zeros (a public constant).

    Every entry carries the device time at which it was embedded: the round of the last release its device
    had applied. The delay of an entry is tau = t_m - that time (the paper's definition).
    """

    def __init__(self, D: int, widths: tuple[int, ...], *, accelerator: str, path: str = "") -> None:
        self.widths = widths
        offsets = [sum(widths[:m]) for m in range(len(widths) + 1)]
        self._columns = [slice(a, b) for a, b in pairwise(offsets)]
        size = D * offsets[-1]
        if path:
            self.h = torch.from_file(path, shared=True, size=size).view(D, offsets[-1]).zero_()
        else:
            self.h = torch.zeros(D, offsets[-1], device=accelerator)
        self.times = np.zeros((len(widths), D), dtype=np.int32)
        # the same numbers, for numpy, whose calls on small batches cost less than torch's
        self._h = self.h.numpy() if self.h.is_cpu else None
        self._items = [] if self._h is None else [_items(self._h, columns) for columns in self._columns]

    def columns(self, m: int) -> slice:
        """The columns of device m (counted from 1)."""
        return self._columns[m - 1]

    def rows(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """A copy [B, sum(widths)] of the rows of `ids`, in which the caller replaces the columns of one device.

        Where there is only one device, nothing is read.
        """
        if len(self.widths) == 1:
            return self.h.new_empty(len(ids), *self.widths)
        return gather(self.h, ids) if self._h is None else torch.from_numpy(self._h.take(ids, axis=0))

    def put(self, m: int, ids: slice, h: NDArray[np.float32], time: int) -> None:
        """Store device m's embeddings of the records `ids`, made at device time `time`."""
        self.h[ids, self._columns[m - 1]] = torch.tensor(h, device=self.h.device)
        self.times[m - 1, ids] = time

    def keep(self, m: int, ids: NDArray[np.int64], rows: torch.Tensor, time: int) -> None:
        """Store device m's columns of `rows` [B, sum(widths)], those of the records `ids`."""
        columns = self._columns[m - 1]
        if self._h is not None:
            self._items[m - 1][ids] = _items(rows.numpy(), columns)
        else:
            self.h[torch.from_numpy(ids).to(self.h.device), columns] = rows[:, columns]
        self.times[m - 1][ids] = time

    def delays(self, ids: NDArray[np.int64], now: list[int]) -> tuple[int, int]:
        """The sum and the largest of tau over the entries of `ids`; `now` [M] holds every device's present time t_m."""
        delays = np.array(now, np.int32)[:, None] - self.times.take(ids, axis=1)
        return int(np.add.reduce(delays, axis=None)), int(np.maximum.reduce(delays, axis=None))


def _items(rows: NDArray[np.float32], columns: slice) -> NDArray[np.void]:
    """`columns` of `rows` as one item a row, seen in place: numpy moves items in half the time of rows."""
    size = rows.itemsize
    kind = np.dtype((np.void, size * (columns.stop - columns.start)))
    return np.ndarray(len(rows), kind, rows.data, size * columns.start, rows.strides[:1])
