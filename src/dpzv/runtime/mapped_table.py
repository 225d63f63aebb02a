"""The server's table, in memory or in a file that is mapped into it (``table.path``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from dpzv.config import Config
from dpzv.durable import make_zeros
from dpzv.protocol.messages import CHUNK
from dpzv.protocol.server import Schedules
from dpzv.protocol.table import Blocks, Table

__all__ = ["put_back", "table_of", "whole"]

FEW = 16
"""With up to this many devices, a head that only adds makes its sums anew in every round: keeping them is slower."""
REMEDY = "free space or choose another table.path"


def table_of(config: Config, widths: tuple[int, ...], schedules: Schedules) -> Table:
    """An empty table for devices with embeddings of these `widths` and with these batches."""
    D, path, blocks = schedules[0].D, config.table.path, None
    if path:
        _new_file(path, D, widths)
        blocks = Blocks(path, widths, [schedule.order for schedule in schedules])
    added = config.head.model == "sum" and len(widths) > FEW
    return Table(D, widths, accelerator=config.runtime.accelerator, blocks=blocks, added=added)


def whole(table: Table, path: str) -> torch.Tensor:
    """All rows of a table, in the order of the records; of one in the file `path`, a copy in a file without a name."""
    if isinstance(table.h, torch.Tensor):
        return table.h
    copy = Path(f"{path}.rows")
    _new_file(str(copy), len(table.h), table.widths)
    rows = torch.from_file(str(copy), shared=True, size=len(table.h) * table.h.shape[1]).view(table.h.shape)
    copy.unlink()
    for start in range(0, len(rows), CHUNK):
        rows[start : start + CHUNK] = table.h[start : start + CHUNK]
    return rows


def put_back(table: Table, schedules: Schedules, stored: Callable[[str], torch.Tensor], *, by_device: bool) -> None:
    """Put back the rows of a checkpoint, whether the table was in a file then or not, and whether it is now.

    `stored` gives a tensor by its name; `by_device` says that the rows are in the blocks of a mapped table.
    """
    for m, (schedule, columns) in enumerate(zip(schedules, table.columns, strict=True), 1):
        order = torch.tensor(schedule.order, device=table.h.device)
        if isinstance(table.h, Blocks):
            block = table.h.parts[m - 1]
            block.copy_(stored(f"table-{m}") if by_device else stored("table")[:, columns][order])
        elif by_device:
            table.h[order, columns] = stored(f"table-{m}").to(order.device)
        else:
            table.h[:, columns] = stored("table")[:, columns].to(order.device)


def _new_file(path: str, D: int, widths: tuple[int, ...]) -> None:
    make_zeros(Path(path), 4 * D * sum(widths), REMEDY)  # a float32 has 4 bytes
