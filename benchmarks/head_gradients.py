"""The outer-product trick for a head's clipped gradients, compared with one gradient per record (`torch.func.vmap`)."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch.func import functional_call, grad, vmap

from benchmarks.bar import Row
from dpzv.methods.dpsgd import clipped_gradient_sum
from dpzv.models.head import Head
from dpzv.models.losses import per_record_loss

__all__ = ["rows"]

BATCH, INPUTS, HIDDEN, CLASSES, C_0 = 4096, 112, 64, 10, 0.5


def by_vmap(head: Head, rows_: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """The same clipped sum from explicit per-record gradients."""
    loss = per_record_loss("classes")
    parameters = {name: w.detach() for name, w in head.named_parameters()}

    def one(weights: dict[str, torch.Tensor], row: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return loss(functional_call(head, weights, (row[None],)), label[None]).sum()

    each = vmap(grad(one), in_dims=(None, 0, 0))(parameters, rows_, y)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    factor = C_0 / norms.clamp_min(C_0)
    return [torch.tensordot(factor, g, dims=1) for g in each.values()]


def rows() -> list[Row]:
    """Three rows: how many times faster the trick is (two rows), and how far apart the two results are."""
    generator = torch.Generator().manual_seed(0)
    head = Head(INPUTS, HIDDEN, CLASSES, generator)
    h = torch.randn(BATCH, INPUTS, generator=generator)
    y = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    loss = per_record_loss("classes")
    exact = copy.deepcopy(head).double()
    slow = _median(lambda: by_vmap(head, h, y), 9)
    same = _median(lambda: by_vmap(exact, h.double(), y), 5)
    fast = _median(lambda: clipped_gradient_sum(head, h, y, loss, C_0), 41)
    apart = max(
        float((a - b).norm() / b.norm())
        for a, b in zip(by_vmap(head, h, y), clipped_gradient_sum(head, h, y, loss, C_0), strict=True)
    )
    return [
        Row("head gradients in float64, batch 4096: times faster than vmap in float32", slow / fast, 20, most=False),
        Row("head gradients in float64, batch 4096: times faster than vmap in float64", same / fast, 20, most=False),
        Row("head gradients: relative difference to vmap, in 1e-5", apart / 1e-5, 1),
    ]


def _median(run: Callable[[], object], times: int) -> float:
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
