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
        self.times = np.zeros((D, len(widths)), dtype=np.int32)

    def columns(self, m: int) -> slice:
        """The columns of device m (counted from 1)."""
        return self._columns[m - 1]

    def rows(self, ids: NDArray[np.int64]) -> torch.Tensor:
        """A copy [B, sum(widths)] of the rows of `ids`."""
        return gather(self.h, ids)

    def put(self, m: int, ids: NDArray[np.int64] | slice, h: torch.Tensor, time: int) -> None:
        """Store device m's embeddings of `ids`, made at device time `time`."""
        own = self.h[:, self._columns[m - 1]]
        if own.device.type == "cpu":
            own.numpy()[ids] = h.numpy()
        else:
            own[ids if isinstance(ids, slice) else torch.from_numpy(ids).to(own.device)] = h
        self.times[ids, m - 1] = time

    def delays(self, ids: NDArray[np.int64], now: list[int]) -> NDArray[np.int32]:
        """tau [B, M] of the rows of `ids`, where `now` [M] holds every device's present time t_m."""
        delays: NDArray[np.int32] = np.array(now, np.int32) - self.times.take(ids, axis=0)
        return delays
