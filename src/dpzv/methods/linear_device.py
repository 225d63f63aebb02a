"""A linear device along K directions at once: embeddings are linear in its weights, so one product gives all slopes.

Up to rounding the result is that of evaluating the network at `w_m` and at `w_m + lam*u_j` one after the other. It
takes a fraction of the time, since the records are read once instead of K times. Networks with more than one layer are
not linear in their weights, and K copies of them would take K times the memory, so they are evaluated one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpzv.models.dense import WhitenedLinear
from dpzv.zo.directions import Direction, Layout

__all__ = ["along", "is_linear"]


def is_linear(network: nn.Module, where: Layout) -> bool:
    """Whether `network` is one linear map whose weight and bias are all that is trained, in one block of a direction.

    A subclass or a hook may do more than the map, so neither passes.
    """
    linear = network.linear if type(network) is WhitenedLinear else network
    if type(linear) is not nn.Linear or linear.bias is None or len(where.blocks) != 1 or not where.blocks[0].shared:
        return False
    both = len(where.parameters) == 2 and where.parameters[0] is linear.weight and where.parameters[1] is linear.bias
    return both and not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


@torch.no_grad()
def along(network: nn.Module, x: Tensor, us: Sequence[Direction], lam: float) -> tuple[Tensor, ...]:
    """`network(x)` [B, k] at `w` and at `w + lam*u` for each of `us`, where `is_linear(network, us[0].layout)`."""
    block = us[0].layout.blocks[0]
    weights, biases = zip(*(u.shared(block) for u in us), strict=True)
    h: Tensor = network(x)
    weight, bias = torch.cat(weights).to(h.dtype), torch.cat(biases).to(h.dtype)
    if isinstance(network, WhitenedLinear):
        weight, bias = network.unwhitened(weight, bias)
    slopes = torch.addmm(bias[:, None], weight, x.T)  # [K*k, B]: all slopes of a direction are neighbours in memory
    moved = slopes.mul_(lam).view(len(us), -1, len(x)).add_(h.T)
    return h, *moved.transpose(1, 2).contiguous()
