"""Convolutions whose weights differ from run to run, as matrix products.

Torch computes such a convolution one run after the other. As a product of patches and weights it is one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Products"]


class Products(TorchFunctionMode):
    """Inside the block, two-dimensional convolutions with weights of several runs or points are matrix products."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func is F.conv2d and len(args) == 7 and not named and torch._C._functorch.is_batchedtensor(args[1]):
            x, weight, bias, stride, padding, dilation, groups = args
            if groups == 1 and tuple(dilation) == (1, 1) and not isinstance(padding, str):
                return _product(x, weight, bias, tuple(stride), tuple(padding))
        return func(*args, **named)


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    """The convolution of images [B, c, rows, columns] with `weight` [outputs, c, a, b]."""
    outputs, c, a, b = weight.shape
    x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    patches = x.unfold(2, a, stride[0]).unfold(3, b, stride[1])  # [B, c, rows, columns, a, b], a view
    B, _, rows, columns = patches.shape[:4]
    flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(B * rows * columns, c * a * b)
    product = flat @ weight.reshape(outputs, c * a * b).T
    if bias is not None:
        product = product + bias
    return product.view(B, rows, columns, outputs).permute(0, 3, 1, 2)
