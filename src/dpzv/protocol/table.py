"""The server's table: the latest embedding of every record from every device, and how old it is."""

from __future__ import annotations

from itertools import pairwise

import torch

__all__ = ["Table"]


class Table:
    """Rows of `sum(widths)` numbers for D records. An empty row is zeros (a public constant).

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
        self.times = torch.zeros(D, len(widths), dtype=torch.int64, device=accelerator)

    def columns(self, m: int) -> slice:
        """The columns of device m (counted from 1)."""
        return self._columns[m - 1]

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """A copy [B, sum(widths)] of the rows of `ids`."""
        return self.h.index_select(0, ids)

    def put(self, m: int, ids: torch.Tensor | slice, h: torch.Tensor, time: int) -> None:
        """Store device m's embeddings of `ids`, made at device time `time`."""
        own, times = self.h[:, self._columns[m - 1]], self.times[:, m - 1]
        if isinstance(ids, slice):
            own[ids], times[ids] = h, time
        else:
            own.index_copy_(0, ids, h)
            times.index_fill_(0, ids, time)

    def delays(self, ids: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        """tau [B, M] of the rows of `ids`, where `now` [M] holds every device's present time t_m."""
        return now - self.times.index_select(0, ids)
