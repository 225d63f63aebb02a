"""The final head: fitted without noise to the server's table after the last Delta, and kept at the server.

No device sees anything that depends on it, so it costs no budget against devices, however many networks are tried. It
is never used for a release and never published. Columns are standardised, three networks are tried on some of
the training records, and the one with the least loss on the others is fitted to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from msgspec import Struct
from msgspec.structs import replace

from dpzv.models.final_head import FinalHead
from dpzv.models.losses import Loss
from dpzv.rng import torch_generator

__all__ = ["Candidate", "Chosen", "Refit", "refit"]

STEPS = 1000
"""Adam's steps of the last fit; a fit for the choice takes half as many.

A batch has 2*sqrt(n) of n records, so that small data get many passes and big data few.
"""
MOST = 20_000
"""At most so many records take part in the choice."""
FEWEST = 30
"""With fewer records than this there is no choice, and the first candidate is taken."""
CHUNK = 65_536
"""Rows that are looked at together where all are needed: a large table may lie on a disk."""
LIKE_CONSTANT = 1e-6
"""A column whose deviation is below this share of its largest value does not vary beyond rounding."""


class Refit(Struct, frozen=True, kw_only=True):
    """How the final head is made: `hidden` is the width of the network with one hidden layer."""

    outputs: int
    hidden: int
    seed: int
    number: bool
    """Whether the label is a number: the head then learns it in units of its deviation."""
    steps: int = STEPS


class Candidate(Struct, frozen=True):
    """A network that the final head may be: widths of its hidden layers, Adam's first step, weight decay."""

    name: str
    hidden: tuple[int, ...]
    eta: float
    decay: float


class Chosen(Struct, frozen=True):
    """Which candidate the final head is, and the loss of each on the `records` held out for the choice."""

    name: str
    records: int
    losses: dict[str, float]


class _Part(Struct, frozen=True):
    """What a head is fitted to: `ids` are the rows that take part."""

    rows: torch.Tensor
    y: torch.Tensor
    loss: Loss
    ids: torch.Tensor

    @torch.no_grad()
    def mean_loss(self, head: FinalHead) -> float:
        """Of `head` on these rows; infinite for a head that diverged."""
        found = float(self.loss(head(self.rows[self.ids]), self.y[self.ids]).mean())
        return found if math.isfinite(found) else math.inf


def candidates(how: Refit) -> tuple[Candidate, ...]:
    """What is tried; the names are a format of summaries."""
    return (
        Candidate("linear", (), 2e-2, 0.0),
        Candidate(f"one hidden layer of {how.hidden}", (how.hidden,), 2e-3, 0.0),
        Candidate("two hidden layers of 256", (256, 256), 2e-3, 1e-3),
    )


def refit(rows: torch.Tensor, y: torch.Tensor, loss: Loss, how: Refit) -> tuple[FinalHead, Chosen]:
    """The final head for `rows` [D, k_1+...+k_M] and `y` [D], and how it was chosen.

    The names of the random streams are a format of seeded runs.
    """
    tried, D = candidates(how), len(rows)
    losses: dict[str, float] = {}
    order = torch.randperm(D, generator=torch_generator(how.seed, "refit", "choice"))[:MOST].to(rows.device)
    held, rest = (_Part(rows, y, loss, ids) for ids in order.tensor_split([len(order) // 10]))
    if D >= FEWEST:
        short = replace(how, steps=math.ceil(how.steps / 2))
        losses = {one.name: held.mean_loss(_fitted(one, rest, short)) for one in tried}
    best = min(tried, key=lambda one: losses.get(one.name, 0.0))
    head = _fitted(best, _Part(rows, y, loss, torch.arange(D, device=rows.device)), how)
    return head, Chosen(best.name, len(held.ids) if losses else 0, losses)


def _fitted(one: Candidate, table: _Part, how: Refit) -> FinalHead:
    """The candidate fitted to the rows of `table`, with its standardisation."""
    widths = (table.rows.shape[1], *one.hidden, how.outputs)
    head = FinalHead.seeded(widths, torch_generator(how.seed, "head", "final", one.name)).to(table.rows.device)
    head.mean, head.scale = _standardisation(table.rows, table.ids)
    y = table.y
    if how.number:
        mean, scale = _standardisation(table.y[:, None], table.ids)
        y = (table.y - mean) * scale
    adam = _Adam(head, one.decay)
    for t, ids in enumerate(_batches(table.ids, how.seed, how.steps)):
        with torch.enable_grad():
            table.loss(head(table.rows[ids]), y[ids]).mean().backward()  # type: ignore[no-untyped-call]
        adam.step(one.eta * 0.5 * (1 + math.cos(math.pi * t / how.steps)))  # falls to 0 along a cosine
    if how.number:
        head.out_mean, head.out_scale = mean, torch.where(scale > 0, 1 / scale, 0.0)
    return head


def _batches(ids: torch.Tensor, seed: int, steps: int) -> Iterator[torch.Tensor]:
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
def _standardisation(rows: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
