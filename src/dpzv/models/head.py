"""The server's model `w_0`: a small network, or a sum without weights; and where its outputs start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from msgspec import Struct
from torch import Tensor, nn

from dpzv.errors import ConfigError
from dpzv.models.layers import he, linear_layer
from dpzv.rng import torch_generator
from dpzv.terms import Task
from dpzv.validate import positive, probability

__all__ = ["NO_OFFSET", "Head", "Offset", "SumHead", "base_offset", "head_of", "seeded_head"]

ROUNDING = 1e-3
"""By how much the frequencies of all classes may miss 1, since they are published with few digits."""


class Offset(Struct, frozen=True):
    """Where outputs start: `base` is a number for each output, or one for all; `scale` multiplies what is added."""

    base: tuple[float, ...]
    scale: float = 1.0


NO_OFFSET = Offset((0.0,))


class Head(nn.Module):
    """Two linear layers with ReLU: embeddings of all devices [B, k_1+...+k_M] to outputs [B, outputs].

    `outputs` is the number of classes, or 1 for a binary label or a number. For embeddings of deviation 1 the
    outputs of the random start have a deviation of about 1.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = linear_layer(he((hidden, inputs), generator))
        self.out = linear_layer(he((outputs, hidden), generator, gain=1.0))

    def forward(self, h: Tensor) -> Tensor:
        """Outputs [B, outputs]: logits, or a number."""
        output: Tensor = self.out(self.hidden(h).relu())
        return output

    def along(self, h: Tensor, columns: slice, steps: Iterable[Tensor]) -> Iterator[Tensor]:
        """Outputs for `h`, then for each of `steps` [B, k] those for `h` with the step added to these columns.

        The first layer reads all columns once, and then only what changes.
        """
        first, some = self.hidden(h), self.hidden.weight[:, columns].T
        yield self.out(first.relu())
        for step in steps:
            yield self.out(torch.addmm(first, step, some).relu_())

    @torch.no_grad()
    def shift(self, offset: Offset) -> None:
        """Let the outputs start at `offset`."""
        self.out.bias.add_(torch.tensor(offset.base))
        self.out.weight.mul_(offset.scale)


class SumHead(nn.Module):
    """Adds what the devices send, each `outputs` numbers a record: [B, M*outputs] to [B, outputs].

    It has no weights that could be trained. With linear devices the model is a logistic regression (softmax or linear
    regression for other tasks) whose weights each device keeps for its own columns.
    """

    base: Tensor
    scale: Tensor

    def __init__(self, outputs: int, offset: Offset = NO_OFFSET) -> None:
        super().__init__()
        self.register_buffer("base", torch.tensor(offset.base).expand(outputs).clone())
        self.register_buffer("scale", torch.tensor(offset.scale))

    def forward(self, h: Tensor) -> Tensor:
        """Outputs [B, outputs]: logits, or a number."""
        outputs = len(self.base)
        total = h[:, :outputs].clone()
        for start in range(outputs, h.shape[1], outputs):  # torch's sum over so few numbers takes many times as long
            total += h[:, start : start + outputs]
        return self.base + self.scale * total

    def along(self, h: Tensor, columns: slice, steps: Iterable[Tensor]) -> Iterator[Tensor]:
        """Outputs for `h`, then for each of `steps` [B, outputs] those for `h` with the step added to these columns."""
        first = self(h)
        yield first
        for step in steps:
            yield first + self.scale * step


def seeded_head(inputs: int, hidden: int, outputs: int, seed: int) -> Head:
    """A head with the random start that the run's `seed` gives; the name of the stream is a format."""
    return Head(inputs, hidden, outputs, torch_generator(seed, "head", "w_0"))


def head_of(state: dict[str, Tensor]) -> Head | SumHead:
    """The head whose stored tensors are `state`; their names are a format."""
    if "base" in state:
        head: Head | SumHead = SumHead(len(state["base"]))
    else:
        hidden, inputs = state["hidden.weight"].shape
        head = Head(inputs, hidden, len(state["out.weight"]), torch.Generator())
    head.load_state_dict(state)
    return head


FARTHEST = 10.0
"""The largest mean of a number in `head.base`: labels are scaled to about 1, so a larger one is in other units."""


def base_offset(base: float | Sequence[float], task: Task, outputs: int) -> Offset:
    """The offset that a base rate stands for: log-odds, log-frequencies, or the mean and the scale of a number."""
    numbers = (base,) if isinstance(base, float | int) else tuple(base)
    if task == "regression":
        if len(numbers) not in (1, 2):
            raise ConfigError(
                f"head.base of a number must be its mean, or its mean and scale, got {len(numbers)} values; give "
                "[mean, scale]."
            )
        if not abs(numbers[0]) <= FARTHEST:
            raise ConfigError(
                "head.base of a number is on the scale that is trained on, where a public range is -1 to 1 (-2 to 2 in "
                f"dpzv.sklearn), got a mean of {numbers[0]:g}; give (mean - middle of the range) / half its width."
            )
        return Offset(numbers[:1], positive("the scale in head.base", (*numbers, 1.0)[1]))
    if len(numbers) != outputs:
        what = "the probability of label 1" if task == "binary" else f"the frequencies of all {outputs} classes"
        raise ConfigError(f"head.base must be {what}, got {len(numbers)} values; give {outputs}.")
    for share in numbers:
        probability("a share in head.base", share)
    if task == "binary":
        return Offset((math.log(numbers[0] / (1 - numbers[0])),))
    if abs(math.fsum(numbers) - 1) > ROUNDING:
        raise ConfigError(f"the frequencies in head.base must add up to 1, got {math.fsum(numbers):g}; correct them.")
    return Offset(tuple(map(math.log, numbers)))
