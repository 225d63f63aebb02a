"""Devices that share an architecture: their weights in one tensor, from which a round takes those of its device.

Torch computes a convolution whose weights differ from run to run one run after the other. As a product of patches and
weights (`Products`) it is one operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode

from dpzv.errors import ConfigError
from dpzv.methods.steps import Directions
from dpzv.protocol.device import Device
from dpzv.runtime.fused_flat import Flat
from dpzv.zo.perturb import two_point

__all__ = ["Kin", "Products", "architecture"]

LARGE = 1 << 20
"""Networks with more numbers than this are evaluated one after the other: they fill an accelerator by themselves."""

PLAIN = (bool, int, float, str, tuple, type(None))


def architecture(device: Device) -> tuple[Any, ...]:
    """What two devices must have in common to be computed by the same operations on other numbers."""
    network = device.method.network
    parts = [
        (name, type(part), sorted((k, v) for k, v in vars(part).items() if isinstance(v, PLAIN) and k[:1] != "_"))
        for name, part in network.named_modules()
    ]
    tensors = [
        (name, tuple(t.shape), t.dtype, t.requires_grad)
        for name, t in itertools.chain(network.named_parameters(), network.named_buffers())
    ]
    return str(parts), tuple(tensors), tuple(device.x_train.shape[1:]), device.x_train.dtype


def _fixed(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a network that are not trained."""
    yield from ((name, w) for name, w in network.named_parameters() if not w.requires_grad)
    yield from network.named_buffers()


class Kin:
    """The devices `members[r][s]` of R runs, S in each run, which share an architecture and hold the same records.

    `w` and `velocity` [R*S, d] have a row for each device; `x` [S*D, ...] are the features, which all runs share.
    """

    def __init__(self, members: Sequence[Sequence[Device]], *, momentum: bool) -> None:
        self.members, self.network = members, members[0][0].method.network
        self.flat, self.S = Flat(self.network), len(members[0])
        everyone = [device for run in members for device in run]
        self.w = torch.stack([self.flat.joined(_trained(device)) for device in everyone])
        self.velocity = torch.zeros_like(self.w) if momentum else self.w.new_empty(0)
        for row, device in zip(self.velocity, everyone, strict=False):
            if device.method.velocity:
                self.flat.put(device.method.velocity, row)
        self.x = self._features()
        named = [dict(_fixed(device.method.network)) for device in everyone]
        self._fixed = {
            name: torch.stack([other[name] for other in named])
            for name, first in named[0].items()
            if not all(torch.equal(first, other[name]) for other in named)
        }
        for device in everyone:
            _refuse_unread(device)

    def embeddings(self, w: Tensor, where: Tensor, x: Tensor) -> Tensor:
        """h [R, P, B, k] of batches `x` [R, B, ...] at the weights `w` [R, P, d]; `where` [R] are rows of devices."""
        fixed = {name: stack.index_select(0, where) for name, stack in self._fixed.items()}
        R, P, d = w.shape
        if d > LARGE or R * P == 1:
            found = []
            for r in range(R):
                own = {name: rows[r] for name, rows in fixed.items()}
                found.append(torch.stack([self._forward(w[r, p], own, x[r]) for p in range(P)]))
            return torch.stack(found)
        points: Callable[..., Tensor] = self._forward
        if P > 1:
            points = vmap(points, in_dims=(0, None, None))
        with Products():
            if R == 1:
                h = points(w[0] if P > 1 else w[0, 0], {name: rows[0] for name, rows in fixed.items()}, x[0])[None]
            else:
                h = vmap(points, in_dims=(0, 0, 0))(w if P > 1 else w[:, 0], fixed, x)
        return h if P > 1 else h[:, None]

    def restore(self) -> None:
        """Write weights and velocities back into the devices."""
        for i, device in enumerate(device for run in self.members for device in run):
            self.flat.take(self.w[i], _trained(device))
            if device.method.velocity:
                self.flat.take(self.velocity[i], device.method.velocity)

    def _forward(self, row: Tensor, fixed: dict[str, Tensor], x: Tensor) -> Tensor:
        h: Tensor = functional_call(self.network, self.flat.views(row) | fixed, (x,))
        return h

    def _features(self) -> Tensor:
        """The features of all devices in one tensor; the devices keep views of it, so that nothing is stored twice."""
        first = self.members[0]
        together = torch.stack([device.x_train for device in first])
        for run in self.members:
            for s, device in enumerate(run):
                if not torch.equal(device.x_train, together[s]):
                    raise ConfigError("runs that advance together must be on the same records; run them one by one.")
                device.x_train = together[s]
        return together.flatten(0, 1)


def _trained(device: Device) -> list[Tensor]:
    return [w for w in device.method.network.parameters() if w.requires_grad]


def _refuse_unread(device: Device) -> None:
    """Refuse a network that does not read all its weights, as the reference loop does in its first round."""
    two_point(device.method.network, device.x_train[:2], Directions(device.method.network, 0, "unread")(0), 1e-3)


class Products(TorchFunctionMode):
    """Inside the block, two-dimensional convolutions with weights of several runs or points are matrix products."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func is Tensor.contiguous and named.get("memory_format") is torch.channels_last:
            return args[0]  # products gain nothing by it, and `vmap` refuses it
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
