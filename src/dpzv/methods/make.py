"""The rules of a method by its name."""

from __future__ import annotations

import torch

from dpzv.methods import dpzv, vafl, vfl_czofo, zoo_vfl
from dpzv.methods.heads import HeadRule
from dpzv.methods.rival import Rival, Uplink
from dpzv.methods.rules import DeviceRule, ServerRule
from dpzv.methods.steps import Steps
from dpzv.models.losses import Loss
from dpzv.terms import MethodName

__all__ = ["make_device_rule", "make_server_rule"]

_DEVICES: dict[MethodName, type[Rival]] = {
    "vafl": vafl.VaflDevice,
    "zoo-vfl": zoo_vfl.ZooVflDevice,
    "vfl-czofo": vfl_czofo.VflCzofoDevice,
}


def make_device_rule(
    name: MethodName, network: torch.nn.Module, *, m: int, seed: int, lam: float, steps: Steps, uplink: Uplink
) -> DeviceRule:
    """What device m does under method `name`; `uplink` is for the rivals."""
    if name == "dpzv":
        return dpzv.DpzvDevice(network, m=m, seed=seed, lam=lam, steps=steps)
    return _DEVICES[name](network, m=m, seed=seed, lam=lam, steps=steps, uplink=uplink)


def make_server_rule(
    name: MethodName, head: torch.nn.Module, rule: HeadRule, loss: Loss, C: float, *, q: int, seed: int
) -> ServerRule:
    """What the server does under method `name`; `q` and the directions' `seed` are for vfl-czofo."""
    if name == "dpzv":
        return dpzv.DpzvServer(head, rule, loss, C)
    if name == "vafl":
        return vafl.VaflServer(head, rule, loss, C)
    if name == "zoo-vfl":
        return zoo_vfl.ZooVflServer(head, rule, loss, C)
    return vfl_czofo.VflCzofoServer(head, rule, loss, C, q, seed)
