"""A device's own folder: its checkpoint while it trains, and its weights once the run is finished.

The files are `state.safetensors` and `weights/device-m.safetensors`, where m is the device's number, and `ids.key` if
the device hides its ids. One process at a time owns the folder: two processes on one folder would overwrite
each other's weights.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import torch

from dpzv.data.alignment import KEY_BYTES
from dpzv.data.columns import Column
from dpzv.durable import holding, readable, write_atomically, write_tensors
from dpzv.errors import DataError
from dpzv.protocol.device import Device

__all__ = ["DeviceFolder", "DeviceState"]


class DeviceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run that a device's weights belong to (empty if there is none yet), its batches so far, its train records.

    `t` and `receipt` are those of the last release in the weights. The weights mean something only with the `columns`
    they were trained on, and until the run is `finished` only with the records whose keyed digest is `records`.
    """

    run_id: str = ""
    position: int = 0
    D: int = 0
    t: int = 0
    receipt: bytes = b""
    columns: tuple[Column, ...] = ()
    records: str = ""
    finished: bool = False


class DeviceFolder:
    """The files of one device."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, path / "state.safetensors"

    def held(self) -> AbstractContextManager[None]:
        """Own the folder inside the block; refuses a folder that another process owns."""
        return holding(self._path, "the folder of a device")

    @property
    def has_state(self) -> bool:
        """Whether there is a checkpoint."""
        return self._file.exists()

    def state(self) -> DeviceState:
        """How many batches the weights of the checkpoint have seen, and in which run."""
        if not self.has_state:
            return DeviceState()
        with self._opened() as file:
            return msgspec.json.decode((file.metadata() or {})["state"], type=DeviceState)

    def ids_key(self) -> bytes:
        """The secret by which this device hides its ids in this run, drawn when it is first needed."""
        file = self._path / "ids.key"
        if not file.exists() and not self.has_state:
            write_atomically(file, secrets.token_hex(KEY_BYTES).encode() + b"\n")
        try:
            key = bytes.fromhex(file.read_text())
        except (OSError, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise DataError(
                f"{file} must hold the {KEY_BYTES} bytes by which this device hid its ids when its run began, but they "
                "cannot be read; put a copy of it back, or give the device an empty folder for a new run."
            )
        return key

    def save(self, device: Device, state: DeviceState) -> None:
        """Write the checkpoint, atomically."""
        write_tensors(self._file, _tensors(device), {"state": msgspec.json.encode(state).decode()})

    @torch.no_grad()
    def restore(self, device: Device) -> DeviceState:
        """Put the weights of the checkpoint into the device, and return its state."""
        state = self.state()
        with self._opened() as file:
            for name, tensor in _tensors(device).items():
                tensor.copy_(file.get_tensor(name))
        device.position = state.position
        return state

    def keep_weights(self, device: Device) -> None:
        """Write the final w_m."""
        path = self._path / "weights" / f"device-{device.m}.safetensors"
        write_tensors(path, device.method.network.state_dict(), {})

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        remedy = "put a copy of it back, or give the device an empty folder"
        with readable(self._file, "the state of this device", remedy), safetensors.safe_open(self._file, "pt") as file:
            yield file


def _tensors(device: Device) -> dict[str, torch.Tensor]:
    # Format of the checkpoint: these names, and the order of the velocities, which is that of the parameters.
    tensors = {f"network.{name}": tensor for name, tensor in device.method.network.state_dict().items()}
    return tensors | {f"velocity.{i}": tensor for i, tensor in enumerate(device.method.velocity)}
