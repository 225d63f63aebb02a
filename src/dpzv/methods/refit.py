"""The final head: fitted without noise to the server's table after the last Delta, and kept at the server.

No device sees anything that depends on it, so it costs no budget against devices, however many models are tried. It
is never used for a release and never published. A linear model, two networks and boosted trees are tried on training
records that they were not fitted to; the simplest that is not clearly worse than the best is fitted to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from msgspec import Struct
from torch import Tensor

from dpzv.methods.final_fits import Sample, linear_heads, standardisation
from dpzv.methods.final_networks import Network, network_head
from dpzv.methods.final_trees import boosted, tree_head, trees_fit
from dpzv.models.final_head import FinalHead, TreeHead
from dpzv.rng import torch_generator
from dpzv.terms import Task

__all__ = ["Chosen", "Refit", "refit"]

STEPS = 1000
"""Adam's steps, at most; a batch has 2*sqrt(n) of n records, so that small data get many passes and big data few."""
FOLDS, FOLDED = 5, 5000
"""With at most `FOLDED` records, each is held out once, in one of `FOLDS` parts; with more, one part is held out."""
HELD = 20_000
"""The most records that are held out at once; it is at most a fifth of all."""
MOST = 0.9
"""A head that was fitted to at least this share of the records is not fitted again to all of them."""
FEWEST = 30
"""With fewer records than this there is no choice, and the head is linear."""
PENALTIES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""The penalties that a linear model is tried with. With much data every third is tried: neighbours differ little."""
WIDE = 1000
"""With fewer records than this the network of two hidden layers is not tried: it has more weights than it can use."""
MANY = 16
"""With fewer columns than this the two hidden layers are narrow: wide ones are no better there, and take five times as
long. Held-out losses on three columns of 261,877 flights were 0.4775 and 0.4772, on three random columns the same."""
FEWEST_TREES, MOST_TREES = 20, 200
"""The limits of the number of trees; where fewer than the first are allowed, no trees are tried."""
CLEARLY = 3.0
"""A candidate this many standard errors worse than the best is not tried on the remaining folds."""
UNTRIED = 3
"""The place in `PENALTIES` of the penalty that is taken where there is no choice."""

Final = FinalHead | TreeHead


class Refit(Struct, frozen=True, kw_only=True):
    """How the final head is made: `hidden` is the width of the network with one hidden layer.

    `steps` are the steps of a fit at most, and five times the number of trees. `balanced`: every class counts as much
    as every other, however rare it is. Unless `choose`, it is that network, and nothing else is tried.
    """

    task: Task
    outputs: int
    hidden: int
    seed: int
    steps: int = STEPS
    balanced: bool = False
    choose: bool = True


class Chosen(Struct, frozen=True):
    """Which model the final head is and in which setting, and the loss of each on the `records` held out in `folds`.

    The loss is the cross-entropy; for a number the squared error as a share of the variance, which is 1 - R^2.
    """

    name: str
    setting: str
    records: int
    folds: int
    losses: dict[str, float]


class _Candidate(Struct, frozen=True):
    """A kind of model: `heads` fits it to a part of the records in all of its settings, or in those given."""

    name: str
    settings: tuple[float, ...]
    unit: str
    heads: Callable[[Sample, Sequence[float]], list[Final]]

    def setting(self, value: float) -> str:
        """The setting in words; empty for a kind that has only one."""
        return self.unit.format(f"{value:g}") if self.unit else ""


class _Found(Struct, frozen=True):
    """A candidate's best setting, its losses on all records that it was judged on, and its head of the last fold."""

    setting: int
    losses: Tensor
    head: Final


def refit(rows: Tensor, y: Tensor, how: Refit) -> tuple[Final, Chosen]:
    """The final head for `rows` [D, k_1+...+k_M] and `y` [D], and how it was chosen.

    The names of the random streams are a format of seeded runs.
    """
    D, everything = len(rows), torch.arange(len(rows), device=rows.device)
    mean, scale = y.new_zeros(1), y.new_ones(1)
    if number := how.task == "regression":
        mean, scale = standardisation(y[:, None], everything)
        y = (y - mean) * scale
    part = Sample(rows, y, _weights(y, how), everything, how.task, how.outputs)
    order = torch.randperm(D, generator=torch_generator(how.seed, "refit", "choice")).to(rows.device)
    folds = list(_folds(order)) if how.choose and D >= FEWEST else []
    tried = _tried(part, how, choice=bool(folds))
    best = _race(tried, part, folds)
    held = sum(len(ids) for _, ids in folds)
    last = {name: found.losses for name, found in best.items() if len(found.losses) == held}
    name = _simplest(last) if last else tried[0].name
    one = next(one for one in tried if one.name == name)
    setting = one.settings[best[name].setting if best else 0]
    nearly = best and len(folds) == 1 and len(folds[0][0]) >= MOST * D
    head = best[name].head if nearly else one.heads(part.of(order), (setting,))[0]
    if number:
        head.put_units(mean, torch.where(scale > 0, 1 / scale, 0.0))
    losses = {name: float(found.losses.mean()) for name, found in best.items()}
    return head, Chosen(name, one.setting(setting), held, len(folds), losses)


def _simplest(losses: dict[str, Tensor]) -> str:
    """The first candidate whose loss is at most one standard error above the least; simple models come first."""
    least = min(losses, key=lambda name: float(losses[name].mean()))
    for name, values in losses.items():
        above = values - losses[least]
        if float(above.mean()) <= float(above.std()) / math.sqrt(len(above)):
            return name
    return least


def _folds(order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(records to fit to, records held out), several times for few records."""
    if len(order) > FOLDED:
        held = min(HELD, len(order) // FOLDS)
        yield order[held:], order[:held]
        return
    parts = order.tensor_split(FOLDS)
    for i, held_out in enumerate(parts):
        yield torch.cat([part for j, part in enumerate(parts) if j != i]), held_out


def _race(tried: Sequence[_Candidate], part: Sample, folds: Sequence[tuple[Tensor, Tensor]]) -> dict[str, _Found]:
    """What was found of each candidate on the held-out records of the folds.

    A candidate that is clearly worse than the best after a fold takes no part in the others, and has fewer losses.
    """
    losses: dict[str, Tensor] = {}
    left, best = list(tried), {}
    for rest, held in folds:
        for one in left:
            heads = one.heads(part.of(rest), one.settings)
            new = torch.stack([part.of(held).losses(head) for head in heads])
            losses[one.name] = torch.cat([losses[one.name], new], dim=1) if one.name in losses else new
            setting = int(losses[one.name].mean(dim=1).argmin())
            best[one.name] = _Found(setting, losses[one.name][setting], heads[setting])
        left = [one for one in left if not _hopeless(one.name, {other.name: best[other.name].losses for other in left})]
    return best


def _hopeless(name: str, losses: dict[str, Tensor]) -> bool:
    """Whether a candidate's loss is above the least one by more than three standard errors of the difference."""
    least = min(losses, key=lambda name: float(losses[name].mean()))
    above = losses[name] - losses[least]
    return not float(above.mean()) <= CLEARLY * float(above.std()) / math.sqrt(len(above))


def _tried(part: Sample, how: Refit, *, choice: bool) -> list[_Candidate]:
    """All candidates; where there is no choice, the network that was asked for, or with few records a linear model."""
    if choice:
        return list(_candidates(part, how))
    if not how.choose:
        return [next(_networks(part, how))]
    return [_linear(PENALTIES[UNTRIED : UNTRIED + 1], how.steps)]


def _candidates(part: Sample, how: Refit) -> Iterator[_Candidate]:
    """What is tried, the simplest first; the names are a format of summaries."""
    n = len(part.ids)
    yield _linear(PENALTIES if n <= FOLDED else PENALTIES[2::3], how.steps)
    yield from _networks(part, how)
    most = min(how.steps // 5, MOST_TREES, 600 // how.outputs, math.ceil(4 * math.sqrt(n)))
    if most >= FEWEST_TREES and trees_fit(part):
        counts = tuple(most * share // 8 for share in ((1, 2, 4, 8) if n <= FOLDED else (4, 8)))
        yield _Candidate("boosted trees", counts, "{} trees an output", partial(_trees, how.seed))


def _networks(part: Sample, how: Refit) -> Iterator[_Candidate]:
    """The network of one hidden layer, and for more records one of two."""
    n = len(part.ids)
    networks = [Network(f"one hidden layer of {how.hidden}", (how.hidden,), 1e-2 if n <= FOLDED else 0.0)]
    if n >= WIDE:
        width = 64 if part.rows.shape[1] < MANY else 256
        networks.append(Network(f"two hidden layers of {width}", (width, width), 1e-3))
    steps = min(how.steps, math.ceil(20 * math.sqrt(n)))  # at most 40 passes
    for network in networks:
        yield _Candidate(network.name, (steps,), "", partial(_network, network, how.seed))


def _network(network: Network, seed: int, part: Sample, settings: Sequence[float]) -> list[Final]:
    return [network_head(network, part, seed, int(steps)) for steps in settings]


def _linear(penalties: tuple[float, ...], steps: int) -> _Candidate:
    def heads(part: Sample, settings: Sequence[float]) -> list[Final]:
        return list(linear_heads(part, settings, steps))

    return _Candidate("linear", penalties, "penalty {}", heads)


def _trees(seed: int, part: Sample, counts: Sequence[float]) -> list[Final]:
    """A head for each number of trees, from one fit."""
    model = boosted(part, int(max(counts)), seed)
    whole, each = tree_head(model, part), len(model._predictors[0])
    return [whole.first(int(count) * each) for count in counts]


def _weights(y: Tensor, how: Refit) -> Tensor | None:
    """The weights [D] with which all classes count the same; `None` if all records count the same."""
    if not how.balanced or how.task == "regression":
        return None
    counts = torch.bincount(y.long()).clamp(min=1)
    return (len(y) / (int((counts > 0).sum()) * counts))[y.long()].float()
