"""How the final head is fitted as a linear model or as a network: to standardised columns, without noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from dpzv.models.final_head import FinalHead
from dpzv.models.layers import linear_layer
from dpzv.models.losses import per_record_loss
from dpzv.rng import torch_generator
from dpzv.terms import Task

__all__ = ["Network", "Sample", "linear_heads", "network_head", "standardisation"]

Flat = np.ndarray[tuple[int], np.dtype[np.float64]]

CHUNK = 65_536
"""Rows that are looked at together where all are needed: a large table may lie on a disk."""
CELLS = 100_000_000
"""At most so many numbers of the table are held in memory for a linear fit; further records would change little."""
EXACT_CELLS = 10_000_000
"""Up to so many numbers, a linear fit takes double precision."""
ITERATIONS = 200
"""Of a logistic regression at most; 20 to 60 are the rule, since columns are standardised."""
LIKE_CONSTANT = 1e-6
"""A column whose deviation is below this share of its largest value does not vary beyond rounding."""


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
        """The same with other rows."""
        return Sample(self.rows, self.y, self.weight, ids, self.task, self.outputs)

    def loss(self, output: Tensor, ids: Tensor) -> Tensor:
        """The weighted loss of each record: cross-entropy, or a squared error."""
        if self.task == "regression":
            return (output.squeeze(1) - self.y[ids]).square()
        found = per_record_loss(self.task)(output, self.y[ids])
        return found if self.weight is None else found * self.weight[ids]

    @torch.no_grad()
    def losses(self, head: torch.nn.Module) -> Tensor:
        """The loss of `head` on each of these records; infinite where it is not a number."""
        chunks = [self.ids[start : start + CHUNK] for start in range(0, len(self.ids), CHUNK)]
        found = torch.cat([self.loss(head(self.rows[ids]), ids) for ids in chunks]).double()
        return found.nan_to_num(math.inf)


class Network(Struct, frozen=True):
    """A network that the final head may be: widths of its hidden layers, and how much its weights decay."""

    name: str
    hidden: tuple[int, ...]
    decay: float
    eta: float = 2e-3


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


def network_head(one: Network, part: Sample, seed: int, steps: int) -> FinalHead:
    """The network fitted by `steps` of Adam to batches of 2*sqrt(n) of the n records of `part`.

    The names of the random streams are a format of seeded runs.
    """
    widths = (part.rows.shape[1], *one.hidden, part.outputs)
    head = FinalHead.seeded(widths, torch_generator(seed, "head", "final", one.name)).to(part.rows.device)
    head.mean, head.scale = standardisation(part.rows, part.ids)
    adam = _Adam(head, one.decay)
    for t, ids in enumerate(_batches(part.ids, seed, steps)):
        with torch.enable_grad():
            part.loss(head(part.rows[ids]), ids).mean().backward()  # type: ignore[no-untyped-call]
        adam.step(one.eta * 0.5 * (1 + math.cos(math.pi * t / steps)))  # falls to 0 along a cosine
    return head


def _batches(ids: Tensor, seed: int, steps: int) -> Iterator[Tensor]:
    """`steps` batches of 2*sqrt(n) of the n `ids`, in passes of an order of their own."""
    n, order = len(ids), ids
    batch = min(n, math.ceil(2 * math.sqrt(n)))
    for t in range(steps):
        at = t % (n // batch)
        if at == 0:
            drawn = torch.randperm(n, generator=torch_generator(seed, "refit", t))
            order = ids[drawn.to(ids.device)]
        yield order[at * batch : (at + 1) * batch]


class _Adam:
    """Adam, with the weight decay of a squared norm in the loss; torch's own takes seconds to import."""

    def __init__(self, network: torch.nn.Module, decay: float) -> None:
        self._decay, self._t = decay, 0
        self._parts = [(w, torch.zeros_like(w), torch.zeros_like(w)) for w in network.parameters()]

    @torch.no_grad()
    def step(self, eta: float, first: float = 0.9, second: float = 0.999) -> None:
        """Move along the gradients, and clear them."""
        self._t += 1
        root = math.sqrt(1 - second**self._t)
        for w, m, v in self._parts:
            assert w.grad is not None
            g = w.grad.add(w, alpha=self._decay) if self._decay else w.grad
            m.lerp_(g, 1 - first)
            v.mul_(second).addcmul_(g, g, value=1 - second)
            w.addcdiv_(m, (v.sqrt() / root).add_(1e-8), value=-eta / (1 - first**self._t))
            w.grad = None


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
