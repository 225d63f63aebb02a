"""Test metrics of a head. They stay with the server: nothing here is sent to a device."""

from __future__ import annotations

import torch

from dpzv.metrics import Metrics
from dpzv.models.losses import Loss
from dpzv.terms import Task

__all__ = ["measure"]


@torch.no_grad()
def measure(head: torch.nn.Module, rows: torch.Tensor, y: torch.Tensor, task: Task, loss: Loss) -> Metrics:
    """Metrics of `head` on test rows [D_test, K] with labels `y`."""
    output = head(rows)
    test_loss = float(loss(output, y).mean())
    if task == "regression":
        return Metrics(None, None, test_loss)
    if task == "classes":
        return Metrics(float((output.argmax(dim=1) == y).double().mean()), None, test_loss)
    score = output.squeeze(1)
    accuracy = float(((score > 0) == (y > 0.5)).double().mean())
    both = 0 < float(y.mean()) < 1  # the area is undefined on test records of one class
    return Metrics(accuracy, _auc(y, score) if both else None, test_loss)


def _auc(y: torch.Tensor, score: torch.Tensor) -> float:
    from sklearn.metrics import roc_auc_score  # a second to import, and only binary tasks need it

    ranked = score.nan_to_num(0.0)  # a head that diverged ranks nothing, and says so by an area of one half
    return float(roc_auc_score(y.cpu().numpy(), ranked.cpu().numpy()))
