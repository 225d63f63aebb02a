"""The server's table: the latest embedding of every record from every device, and how old it is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Blocks", "Table", "gather"]


class Blocks:
    """The rows of a table in a mapped file of zeros: a block [D, width] for each device, in the order of its batches.

    So the new embeddings of a batch lie next to each other. In the order of the records each would be on a page of its
    own, and the kernel writes whole pages to the disk: for a batch of 512 records these are 2 MiB in every round.

    `orders` are the records in the order of each device's batches. Rows are read like those of a tensor.
    """

    def __init__(self, path: str, widths: tuple[int, ...], orders: Sequence[NDArray[np.int64]]) -> None:
        D = len(orders[0])
        flat = torch.from_file(path, shared=True, size=D * sum(widths))
        ends = [D * end for end in accumulate(widths)]
        self.parts = [flat[end - D * k : end].view(D, k) for end, k in zip(ends, widths, strict=True)]
        self.shape, self.device = (D, sum(widths)), flat.device
        self._places = [np.empty(D, np.int32) for _ in orders]
        for places, order in zip(self._places, orders, strict=True):
            places[order] = np.arange(D, dtype=np.int32)

    def own(self, m: int, ids: NDArray[np.int64]) -> torch.Tensor:
        """A copy of device m's embeddings of the records `ids`."""
        return gather(self.parts[m - 1], self._places[m - 1].take(ids))

    def store(self, m: int, ids: NDArray[np.int64], new: torch.Tensor) -> None:
        """Store device m's embeddings of the records `ids`."""
        self.parts[m - 1].numpy()[self._places[m - 1].take(ids)] = new.numpy()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, ids: NDArray[np.int64] | torch.Tensor | slice | int) -> torch.Tensor:
        """A copy of the rows `ids`, or of the one row."""
        if isinstance(ids, int):
            return self[np.array([ids])][0]
        chosen = np.arange(*ids.indices(len(self))) if isinstance(ids, slice) else np.asarray(ids)
        return torch.cat([self.own(m, chosen) for m in range(1, len(self.parts) + 1)], dim=1)


class Table:
    """Rows `h` of `sum(widths)` numbers for D records. An empty row is zeros (a public constant).

    `columns[m - 1]` are those of device m. Every entry carries the device time at which it was embedded: the round of
    the last release its device had applied. The delay of an entry is tau = t_m - that time (the paper's definition).

    With `blocks` the rows lie in a file that is mapped into memory. With `added`, for a head that only adds what the
    devices send, `sums` [D, width] are these sums; a batch's rows are then read in a time that does not depend on the
    number of devices. Sums are in double precision, so that rounding does not grow over many changes.
    """

    h: torch.Tensor | Blocks

    def __init__(
        self,
        D: int,
        widths: tuple[int, ...],
        *,
        accelerator: str,
        blocks: Blocks | None = None,
        added: bool = False,
    ) -> None:
        self.widths = widths
        offsets = [0, *accumulate(widths)]
        self.columns = [slice(a, b) for a, b in pairwise(offsets)]
        self.h = torch.zeros(D, offsets[-1], device=accelerator) if blocks is None else blocks
        self.sums = torch.zeros(D, widths[0], dtype=torch.float64, device=accelerator) if added else None
        self.times = np.zeros((len(widths), D), dtype=np.int32)

    def rows(self, m: int, ids: NDArray[np.int64]) -> tuple[torch.Tensor, slice]:
        """A copy of the rows of `ids`, and the columns in it of device m, which the caller replaces.

        The copy has all columns of the table. Where sums are kept, it has the sums over all other devices and the
        columns of this one: a head that adds gives the same for these. Where there is only one device, nothing is read.
        """
        columns, width = self.columns[m - 1], self.widths[m - 1]
        if self.sums is not None:
            own = self._own(m, ids)
            at = torch.tensor(ids, device=own.device)
            return torch.cat([(self.sums[at] - own).float(), own], dim=1), slice(width, 2 * width)
        if len(self.widths) == 1:
            return torch.empty(len(ids), width, device=self.h.device), columns
        return self.h[ids] if isinstance(self.h, Blocks) else gather(self.h, ids), columns

    def put(self, m: int, ids: slice, h: NDArray[np.float32], time: int) -> None:
        """Store device m's embeddings of the records `ids`, made at device time `time`."""
        if self.sums is not None or isinstance(self.h, Blocks):
            self._store(m, np.arange(ids.start, ids.stop), torch.tensor(h, device=self.h.device))
        else:
            self.h[ids, self.columns[m - 1]] = torch.tensor(h, device=self.h.device)
        self.times[m - 1, ids] = time

    def keep(self, m: int, ids: NDArray[np.int64], rows: torch.Tensor) -> None:
        """Store device m's columns of `rows`, which the method `rows` gave, for the records `ids`."""
        columns = self.columns[m - 1]
        if self.sums is not None:
            self._store(m, ids, rows[:, self.widths[m - 1] :])
        elif isinstance(self.h, Blocks) or not self.h.is_cpu:
            self._store(m, ids, rows[:, columns])
        else:
            _items(self.h, columns)[ids] = _items(rows, columns)

    def _own(self, m: int, ids: NDArray[np.int64]) -> torch.Tensor:
        """Device m's embeddings of the records `ids`."""
        if isinstance(self.h, Blocks):
            return self.h.own(m, ids)
        return self.h[torch.tensor(ids, device=self.h.device), self.columns[m - 1]]

    def _store(self, m: int, ids: NDArray[np.int64], new: torch.Tensor) -> None:
        """Store device m's embeddings `new` of the records `ids`, and what they change in the sums."""
        at = torch.tensor(ids, device=new.device)
        if self.sums is not None:
            self.sums[at] += new.double() - self._own(m, ids)
        if isinstance(self.h, Blocks):
            self.h.store(m, ids, new)
        else:
            self.h[at, self.columns[m - 1]] = new

    def delays(self, ids: NDArray[np.int64], now: list[int]) -> tuple[list[int], int]:
        """The sum of tau over each device's entries of `ids`, and the largest; `now` [M] holds their present t_m."""
        delays = np.array(now, np.int32)[:, None] - self.times.take(ids, axis=1)
        return np.add.reduce(delays, axis=1, dtype=np.int64).tolist(), int(np.maximum.reduce(delays, axis=None))


def gather(x: torch.Tensor, ids: NDArray[np.integer]) -> torch.Tensor:
    """A copy of the rows `ids` of `x`; in main memory numpy makes it, in a third of torch's time for a batch."""
    if x.is_cpu:
        return torch.from_numpy(x.numpy().take(ids, axis=0))
    return x.index_select(0, torch.tensor(ids, device=x.device))


def _items(rows: torch.Tensor, columns: slice) -> NDArray[np.void]:
    """A view of `columns` of `rows` with one item for each row: numpy copies items in half the time of rows."""
    values: NDArray[np.float32] = rows.numpy()
    kind = np.dtype((np.void, values.itemsize * (columns.stop - columns.start)))
    return np.ndarray(len(values), kind, values.data, values.itemsize * columns.start, values.strides[:1])
