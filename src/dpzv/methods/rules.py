"""What a method is: a rule for the devices and one for the server. `protocol/` carries what they exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.errors import PeerError
from dpzv.methods.heads import HeadRule
from dpzv.models.losses import Loss

__all__ = ["Answer", "DeviceRule", "Question", "ServerRule", "require_numbers"]


class Answer(Struct, frozen=True):
    """What the server would return before its noise: each number is `totals[i] * grid / divisor`.

    With a clip `totals` are exact integers in units of `grid`; without one they are float64 and `grid` is 1. `divisor`
    is B where every number is a mean over the batch, 1 where every number belongs to one record.
    """

    totals: NDArray[np.int64] | NDArray[np.float64]
    grid: float
    divisor: int


class Question(Struct, frozen=True):
    """Device m's batch at `position` of its schedule, in round t, as the server's rule sees it.

    `rows` [B, k_1+...+k_M] are the table's rows of the batch, and `columns` are the asking device's, for which it sent
    `h`: one or two embeddings [B, k]. `y` [B] are the labels. A record where `contributes` [B] is false adds 0; `None`
    means that all contribute.
    """

    t: int
    m: int
    position: int
    rows: torch.Tensor
    columns: slice
    h: tuple[NDArray[np.float32], ...]
    y: torch.Tensor
    lam: float
    contributes: NDArray[np.bool_] | None = None

    def put(self, h: NDArray[np.float32]) -> None:
        """Let the asking device's columns of `rows` be `h`."""
        if self.rows.is_cpu:
            self.rows.numpy()[:, self.columns] = h  # torch's call costs more in a process just woken
        else:
            self.rows[:, self.columns] = torch.tensor(h, device=self.rows.device)


class DeviceRule(ABC):
    """What device m does in a round. It holds w_m (`network`) and, with momentum, one velocity beside it."""

    network: torch.nn.Module
    velocity: list[torch.Tensor]

    @abstractmethod
    def embeddings(self, x: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
        """What is sent for the batch `x` at `position` of the device's schedule: one or two embeddings [B, k]."""

    @abstractmethod
    def update(self, Delta: NDArray[np.float64], *, position: int, t: int) -> None:
        """Move w_m by the server's answer to the embeddings sent last; it was given in global round t."""

    def fill(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """Embeddings of the train records `x` from `start` on, for the first fill of the server's table."""
        return self.evaluate(x)

    @torch.no_grad()
    def evaluate(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings of test records."""
        h: torch.Tensor = self.network(x)
        return h


@dataclass(frozen=True, slots=True)
class ServerRule(ABC):
    """What the server computes in a round. `C` clips one record's part of an answer; infinite: no clip."""

    uploads: ClassVar[int]
    """How many embeddings a device sends for a batch."""

    head: torch.nn.Module
    head_rule: HeadRule
    loss: Loss
    C: float

    @abstractmethod
    def numbers(self, B: int, width: int) -> int:
        """How many numbers come back for a batch of `B` records of a device whose embeddings have `width` numbers."""

    @abstractmethod
    def answer(self, asked: Question) -> Answer:
        """What a batch is answered, before noise; nothing else that depends on labels leaves this function.

        On return `asked.rows` holds what the table keeps.
        """

    def update(self, t: int, Delta: NDArray[np.float64], rows: torch.Tensor, y: torch.Tensor, steps: int) -> None:
        """Move w_0 after the answer of round t; `rows` are those of the batch, as the table keeps them."""
        self.head_rule.move(t, float(Delta[0]), rows, y, steps)


def require_numbers(Delta: NDArray[np.float64], expected: int) -> None:
    """Refuse an answer of another length than the method's."""
    if len(Delta) != expected:
        raise PeerError(f"an answer of {expected} numbers was expected, got {len(Delta)}; the server is closed.")
