"""The record whose label an attack tries to read, and the embeddings that make its term in a release large.

The adversary knows everything but the canary's label: the start of the head is public, and so are all other values of
the records.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.target import Machine
from dpzv.config import per_device
from dpzv.rng import torch_generator
from dpzv.zo.estimator import delta_zo

__all__ = ["LABELS", "probe", "rows"]

LABELS = (0, 1)
"""The two labels of the canary; all other records have the first."""

NOTHING = float("nan")
"""An embedding that contributes 0: the server stores a row that is not finite as zeros."""

# how many directions are tried, and how long they may be; half precision ends at 65,504
_TRIES = 128
_LENGTHS = tuple(2.0**k for k in range(-6, 13))


@torch.no_grad()
def probe(
    machine: Machine, m: int, least: float = 0.0, *, record: int | None = None, lasting: bool = True
) -> torch.Tensor:
    """An embedding h [k] of device m for which +h and -h give a large `delta_zo`, negative for the first label only.

    Large means at least `least`, at least 8 times the clip, and a loss that changes by 2, which no step of w_0 undoes.
    Where it need not be `lasting`, twice the clip is enough. Of the lengths tried the shortest that is large enough is
    taken, or the best if none is.

    With one direction the table keeps the midpoint of +h and -h, which is 0, so it stays as it was. With more it keeps
    -h. A device that comes later must therefore look for its own embedding beside the row of the same `record`. There a
    change of 1/4 is enough: where one label is certain already, only huge embeddings would change its loss by more.
    """
    rule, table = machine.run.server.method, machine.run.server.table
    lam = per_device("train.lam", machine.run.config.train.lam, machine.plan.M)[m - 1]
    change = 2.0 if machine.plan.directions == 1 else 0.25
    least = max(least, 8 * machine.plan.clip, change / (2 * lam)) if lasting else 2 * machine.plan.clip
    known = torch.zeros(table.h.shape[1]) if record is None else table.h[record]
    columns = table.columns[m - 1]
    # the stream's name is a format: it fixes the directions that are tried
    half = torch.randn(_TRIES // 2, table.widths[m - 1], generator=torch_generator("probe", m))
    half /= half.norm(dim=1, keepdim=True)
    tried = torch.cat([half, -half])  # unit vectors [n, width], each with its opposite
    best, found = -1.0, tried[0]
    for length in _LENGTHS:
        losses = []
        for sign in (1, -1):
            rows = known.repeat(len(tried), 1)
            rows[:, columns] = sign * length * tried
            losses.append([rule.loss(rule.head(rows), torch.full((len(rows),), label)) for label in LABELS])
        first, second = (delta_zo(plus, minus, lam) for plus, minus in zip(*losses, strict=True))
        strength = np.minimum(-first, second)
        top = int(strength.argmax())
        if float(strength[top]) > best:
            best, found = float(strength[top]), length * tried[top]
        if best >= least:
            break
    return found


def rows(ids: NDArray[np.int64], canary: int, h: torch.Tensor, others: torch.Tensor | None = None) -> torch.Tensor:
    """Embeddings [B, k] of a batch: `h` wherever the canary stands, `others` (or nothing) elsewhere."""
    found = torch.full((len(ids), len(h)), NOTHING) if others is None else others.repeat(len(ids), 1)
    found[torch.from_numpy(ids == canary)] = h
    return found
