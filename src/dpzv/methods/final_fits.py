"""How the final head is fitted as a linear model: to standardised columns, without noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from dpzv.models.final_head import FinalHead
from dpzv.models.layers import linear_layer
from dpzv.models.losses import per_record_loss
from dpzv.terms import Task

__all__ = ["Sample", "linear_heads", "standardisation"]

Flat = np.ndarray[tuple[int], np.dtype[np.float64]]

CHUNK = 65_536
"""How many rows are read at a time where all are needed: a large table may lie on a disk."""
CELLS = 100_000_000
"""The most numbers of the table that a linear fit holds in memory; further records would change little."""
EXACT_CELLS = 10_000_000
"""The most numbers for which a linear fit computes in double precision."""
ITERATIONS = 200
"""The most iterations of a logistic regression; mostly it takes 20 to 60, since columns are standardised."""
LIKE_CONSTANT = 1e-6
"""A column whose deviation is below this share of its largest value counts as constant: it varies by rounding only."""


class Sample(Struct, frozen=True):
    """What a head is fitted to, or judged on: `ids` are the rows of the table that take part.

    `y` is a number in units of its deviation, or a class. `weight` is how much each record counts, if not the same.
    """

    rows: Tensor
    y: Tensor
    weight: Tensor | None
    ids: Tensor
    task: Task
    outputs: int

    def of(self, ids: Tensor) -> Sample:
        """A sample of other rows of the same table."""
        return Sample(self.rows, self.y, self.weight, ids, self.task, self.outputs)

    def loss(self, output: Tensor, ids: Tensor) -> Tensor:
        """The weighted loss of each record: cross-entropy, or a squared error."""
        if self.task == "regression":
            return (output.squeeze(1) - self.y[ids]).square()
        found = per_record_loss(self.task)(output, self.y[ids])
        return found if self.weight is None else found * self.weight[ids]

    def slope(self, output: Tensor, ids: Tensor) -> Tensor:
        """The derivative of each record's `loss` by its outputs [B, outputs], in new memory."""
        y = self.y[ids]
        if self.task == "regression":
            return (output - y[:, None]).mul_(2)
        if self.task == "binary":
            found = output.sigmoid().sub_(y[:, None])
        else:
            found = output.softmax(dim=1)
            found.scatter_add_(1, y[:, None], -torch.ones_like(found[:, :1]))
        return found if self.weight is None else found.mul_(self.weight[ids][:, None])

    @torch.no_grad()
    def losses(self, head: torch.nn.Module) -> Tensor:
        """The loss of `head` on each of these records; infinite where it is not a number."""
        chunks = [self.ids[start : start + CHUNK] for start in range(0, len(self.ids), CHUNK)]
        found = torch.cat([self.loss(head(self.rows[ids]), ids) for ids in chunks]).double()
        return found.nan_to_num(math.inf)


def linear_heads(part: Sample, penalties: Sequence[float], steps: int = ITERATIONS) -> list[FinalHead]:
    """A linear head for each penalty on the squared weights: ridge regression, or logistic regression by `steps`.

    A penalty is that of scikit-learn's `Ridge` (alpha) and the inverse of that of its `LogisticRegression` (C).
    """
    ids = part.ids[: max(1, CELLS // part.rows.shape[1])]
    mean, scale = standardisation(part.rows, ids)
    precise = ids.numel() * part.rows.shape[1] <= EXACT_CELLS
    x = ((part.rows[ids] - mean) * scale).to(torch.float64 if precise else torch.float32)
    number = part.task == "regression"
    fits = _ridge(x, part.y[ids], penalties) if number else _logistic(x, part.of(ids), penalties, steps)
    heads = []
    for weight, bias in fits:
        layer = linear_layer(weight.float())
        layer.bias.data.copy_(bias)
        head = FinalHead([layer]).to(part.rows.device)
        head.mean, head.scale = mean, scale
        heads.append(head)
    return heads


@functools.cache
def _pools() -> Any:
    """What limits the threads of scipy's libraries; it is kept, since finding them takes longer than a small fit."""
    import scipy.linalg  # noqa: F401  # its library is found once it is loaded
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _ridge(x: Tensor, y: Tensor, penalties: Sequence[float]) -> Iterator[tuple[Tensor, Tensor]]:
    """(weight [1, inputs], bias [1]) for each penalty, from one decomposition."""
    y, bias = y.to(x.dtype), y.mean().to(x.dtype)
    values, vectors = torch.linalg.eigh((x.T @ x).double())
    turned = vectors.T @ (x.T @ (y - bias)).double()
    for penalty in penalties:
        yield (vectors @ (turned / (values.clamp(min=0) + penalty)))[None], bias[None]


def _logistic(x: Tensor, part: Sample, penalties: Sequence[float], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(weight [outputs, inputs], bias [outputs]) for each penalty; each fit begins where the one before it ended."""
    from scipy.optimize import minimize  # takes a while to import, and only the end of a run needs it

    one_thread = _pools()  # a step is a few short products: a second thread makes it slower, on a busy machine tenfold

    (n, inputs), outputs = x.shape, part.outputs
    y = part.y[part.ids]
    weight = torch.ones_like(x[:, 0]) if part.weight is None else part.weight[part.ids].to(x.dtype)
    truth = y.to(x.dtype)[:, None] if part.task == "binary" else torch.nn.functional.one_hot(y, outputs).to(x.dtype)

    def objective(flat: Flat, penalty: float) -> tuple[float, Flat]:
        w = torch.as_tensor(flat).to(x).view(outputs, inputs + 1)
        z = x @ w[:, :-1].T + w[:, -1]
        if part.task == "binary":
            losses, p = torch.nn.functional.softplus(z[:, 0]) - truth[:, 0] * z[:, 0], z.sigmoid()
        else:
            losses, p = z.logsumexp(dim=1) - (z * truth).sum(dim=1), z.softmax(dim=1)
        g = (p - truth) * weight[:, None] / n
        gradient = torch.cat([g.T @ x + penalty / n * w[:, :-1], g.sum(dim=0)[:, None]], dim=1)
        total = (losses * weight).double().mean() + penalty / n / 2 * w[:, :-1].double().square().sum()
        return float(total), gradient.double().flatten().cpu().numpy()

    flat: Flat = np.zeros(outputs * (inputs + 1))
    for penalty in penalties:
        until = 1e-6 if x.dtype == torch.float64 else 1e-5
        with one_thread.limit(limits=1, user_api="blas"):
            done = minimize(
                objective,
                flat,
                (penalty,),
                "L-BFGS-B",
                jac=True,
                options={"maxiter": min(steps, ITERATIONS), "gtol": until},
            )
        flat = done.x
        found = torch.as_tensor(flat).to(x.device).view(outputs, inputs + 1)
        yield found[:, :-1], found[:, -1]


@torch.no_grad()
def standardisation(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, 1 / deviation) of each column over the rows `ids`; 0 in place of the second for a constant column."""
    n, inputs = len(ids), rows.shape[1]
    total, squares, largest = (torch.zeros(inputs, dtype=torch.float64, device=rows.device) for _ in range(3))
    parts = [ids[start : start + CHUNK] for start in range(0, n, CHUNK)]
    for part in parts:
        total += rows[part].double().sum(dim=0)
    mean = total / n
    for part in parts:
        chunk = rows[part].double()
        squares += (chunk - mean).square().sum(dim=0)
        largest = torch.maximum(largest, chunk.abs().amax(dim=0))
    deviation = (squares / n).sqrt()
    scale = torch.where(deviation > LIKE_CONSTANT * largest, 1 / deviation, 0.0)
    return mean.to(rows.dtype), scale.to(rows.dtype)
