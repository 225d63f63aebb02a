"""Losses per record: nothing is averaged or weighted over a batch, since that would couple records."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dpzv.terms import Task

__all__ = ["Loss", "labels_of", "per_record_loss", "predictions", "probabilities"]

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs [B, n], labels [B]) -> losses [B]."""


def per_record_loss(task: Task) -> Loss:
    """Cross-entropy on logits for `binary` (labels 0/1, n = 1) and `classes` (labels 0..n-1), Huber for numbers.

    Formal guarantee: the loss of a record depends on its own output and label alone.
    """
    if task == "classes":
        return lambda output, y: F.cross_entropy(output, y.long(), reduction="none")
    loss = F.binary_cross_entropy_with_logits if task == "binary" else F.huber_loss
    return lambda output, y: loss(output.squeeze(1), y.to(output.dtype), reduction="none")


def labels_of(y: object, task: Task, accelerator: str) -> Tensor:
    """Labels as the loss takes them, on the accelerator."""
    return torch.as_tensor(y).to(accelerator, torch.int64 if task == "classes" else torch.float32)


def predictions(task: Task, output: Tensor) -> Tensor:
    """[B]: the probability of label 1, the most likely class, or the predicted number."""
    if task == "classes":
        return output.argmax(dim=1)
    return output.squeeze(1).sigmoid() if task == "binary" else output.squeeze(1)


def probabilities(task: Task, output: Tensor) -> Tensor:
    """[B, classes]: the probability of every class, from the logits of a head."""
    if task == "classes":
        return output.softmax(dim=1)
    return torch.cat([-output, output], dim=1).sigmoid()
