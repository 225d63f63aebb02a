"""What a device saw and holds in a run, kept for an auditor (`dpzv train --record-view`), and read again.

    view/device-1/  config.toml  view.json  held.safetensors  received.bin

A view has the agreed configuration, the device's features, its first weights and every release that it was sent, and
nothing of the server or of another device. Its weights over time, its directions, its batches and what it sent follow
from these. Only noise of its own on what it sent cannot be computed again, so rows that had such noise are kept. The
view of a coalition is the views of its members.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import msgspec
import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.durable import disk_errors, make_folder, open_log, readable, write_atomically, write_tensors
from dpzv.errors import DataError, PrivacyRefused
from dpzv.methods.rules import ServerRule
from dpzv.privacy.plan import PrivacyPlan
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Embeddings, Release
from dpzv.validate import toml_of

__all__ = ["DeviceView", "Shape", "ViewLog", "ask_for_views", "read_views", "view_logs"]


class Shape(msgspec.Struct, frozen=True):
    """The public sizes of a device's messages; the names are the format of ``view.json``.

    `numbers` come back for a batch. `sent` is the shape of what was sent where the device adds noise of its own, else
    empty.
    """

    m: int
    M: int
    numbers: int
    sent: tuple[int, ...]

    @property
    def entry(self) -> np.dtype[Any]:
        """One entry of ``received.bin``."""
        fields: list[Any] = [("t", "<i8"), ("position", "<i8"), ("Delta", "<f8", (self.numbers,))]
        return np.dtype(fields + ([("sent", "<f4", self.sent)] if self.sent else []))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceView:
    """What device m saw and holds: features, first weights, and the releases `Delta` [n, numbers] of its n turns.

    Release k came in round `t[k]` for the batch at position k of the device's public schedule. `sent` [n, arrays, B, k]
    is what it sent, where it added noise of its own.
    """

    shape: Shape
    config: Config
    x_train: torch.Tensor
    x_test: torch.Tensor
    start: dict[str, torch.Tensor]
    t: NDArray[np.int64]
    Delta: NDArray[np.float64]
    sent: NDArray[np.float32] | None


def ask_for_views(run: Path) -> None:
    """Have the views of a new run kept in its folder."""
    with disk_errors(run):
        make_folder(run / "view")


def views_asked(run: Path) -> bool:
    """Whether the views of this run are kept."""
    return (run / "view").is_dir()


class ViewLog:
    """Keeps the view of one device while a run lasts. `begun` runs go on where they were."""

    def __init__(self, run: Path, device: Device, shape: Shape, *, begun: bool) -> None:
        self._entry, self._path = shape.entry, run / "view" / f"device-{shape.m}"
        if not begun:
            # written first: this file tells a view from a run, whose folder has a config.toml too
            write_atomically(self._path / "view.json", msgspec.json.encode(shape))
            write_atomically(self._path / "config.toml", (run / "config.toml").read_bytes())
            held = {"x_train": device.x_train, "x_test": device.x_test}
            weights = device.method.network.state_dict()
            write_tensors(self._path / "held.safetensors", held | {f"w.{k}": w for k, w in weights.items()}, {})
            write_atomically(self._path / "received.bin", b"")
        with disk_errors(self._path):
            # unbuffered: what is written survives the death of this process
            self._file: IO[bytes] = os.fdopen(open_log(self._path / "received.bin"), "ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, message: Embeddings | None, release: Release) -> None:
        """Note what the device received in one round, and what it sent where it adds noise of its own."""
        row = np.zeros((), self._entry)
        row["t"], row["position"], row["Delta"] = release.t, release.position, release.Delta
        if message is not None and "sent" in (self._entry.names or ()):
            row["sent"] = np.stack(message.h)
        with disk_errors(self._path):
            self._file.write(row.tobytes())


def view_logs(
    run: Path, devices: Sequence[Device], widths: Sequence[int], plan: PrivacyPlan, method: ServerRule, *, begun: bool
) -> list[ViewLog]:
    """The logs that keep what each device sees; none if nobody has asked for the views of this run."""
    if not views_asked(run):
        return []
    made = []
    for device, width in zip(devices, widths, strict=True):
        sent = (method.arrays, plan.B, width) if plan.sigma_h else ()
        shape = Shape(device.m, plan.M, method.numbers(plan.B, width), sent)
        made.append(ViewLog(run, device, shape, begun=begun))
    return made


def read_views(run: Path) -> tuple[DeviceView, ...]:
    """The views of all devices of a run.

    A batch that was answered twice with different values is a breach of privacy, and refused.
    """
    kept = sorted((run / "view").glob("device-*"), key=lambda path: int(path.name.removeprefix("device-")))
    if not kept and _between_parties(run):
        raise DataError(
            f"expected the views of devices, got {run}, a run between parties, which keeps none, since no party may "
            "hold what another one holds; attack a simulation of the same configuration: `dpzv train` with the agreed "
            "run, all parties' files and `--record-view`."
        )
    if not kept:
        raise DataError(f"{run} has no views of its devices; train with `--record-view` to keep them.")
    return tuple(map(_read, kept))


def _between_parties(run: Path) -> bool:
    """Whether this is the folder of a server that talked to devices."""
    file = run / "config.toml"
    return file.exists() and configuration.parse(toml_of(file.read_bytes(), str(file))).runtime.kind == "network"


def _read(path: Path) -> DeviceView:
    with readable(path, "a view of a device", "train with `--record-view` to keep one"):
        shape = msgspec.json.decode((path / "view.json").read_bytes(), type=Shape)
        config = configuration.parse(toml_of((path / "config.toml").read_bytes(), str(path)))
        # copied, since sums over rows that lie unaligned in a file differ from those of the run in the last bits
        held = {name: w.clone() for name, w in safetensors.torch.load_file(path / "held.safetensors").items()}
        raw = (path / "received.bin").read_bytes()
    whole = len(raw) - len(raw) % shape.entry.itemsize  # what a killed process has half written is left out
    entries = np.frombuffer(raw[:whole], shape.entry)
    # a round that is played again after a crash is noted twice, and must have been answered as before
    positions, first = np.unique(entries["position"], return_index=True)
    if not np.array_equal(positions, np.arange(len(positions))):
        raise DataError(f"{path} lacks some releases of its device; train again with `--record-view`.")
    again = first[entries["position"]]  # the first entry for the same batch
    changed = (entries["t"] != entries["t"][again]) | np.any(entries["Delta"] != entries["Delta"][again], axis=1)
    if changed.any():
        position = int(entries["position"][np.argmax(changed)])
        raise PrivacyRefused(
            f"device {shape.m} of {path.parent.parent} must get one answer for each batch, got two different ones for "
            f"its batch number {position + 1}; noise that is drawn again averages out, so do not rely on the claim."
        )
    entries = entries[first]
    weights = {name.removeprefix("w."): w for name, w in held.items() if name.startswith("w.")}
    x_train, x_test = held["x_train"], held["x_test"]
    sent = entries["sent"] if shape.sent else None
    return DeviceView(shape, config, x_train, x_test, weights, entries["t"], entries["Delta"], sent)
