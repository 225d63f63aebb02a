"""What a training is compared with: the same devices untrained, and each party alone, trained in the same way."""

from __future__ import annotations

from typing import Any

import msgspec

from dpzv.config import Config
from dpzv.data.catalogue import card_of

__all__ = ["UNTRAINED", "alone", "parties"]

UNTRAINED: dict[str, Any] = {"train": {"rounds": 0}, "head": {"rule": "frozen", "final": "best"}}
"""What a recipe's tree changes for devices that stay as they start; only the final head learns."""


def parties(config: Config) -> dict[int, str]:
    """The names of the devices that take part, by their numbers in the data set."""
    names = config.network.devices if config.data.parties else card_of(config.data.name).devices
    return {m: names[m - 1] for m in config.data.devices or range(1, len(names) + 1)}


def alone(config: Config, m: int) -> Config:
    """`config` with the columns of device m of the data set and no others; where it lists values, those of device m.

    Nothing else changes: the party gets the same rounds, batches, budget and refit. With `train.rounds` all rounds are
    its own, with `train.passes` it makes as many passes as before.
    """
    place = list(parties(config)).index(m)
    devices = _picked(config.devices, config.devices.__struct_fields__, place)
    return msgspec.structs.replace(
        config,
        data=msgspec.structs.replace(config.data, devices=(m,)),
        devices=devices,
        train=_picked(config.train, ("lam", "eta_m"), place),
        network=msgspec.structs.replace(config.network, devices=()),
    )


def _picked(section: Any, fields: tuple[str, ...], place: int) -> Any:
    """`section` in which every list among `fields` is replaced by its value at `place`."""
    lists = {field: value for field in fields if isinstance(value := getattr(section, field), tuple)}
    return msgspec.structs.replace(section, **{field: value[place] for field, value in lists.items()})
