"""One atomic file with everything a run needs to continue exactly where it was.

Tensors are stored as safetensors; the few plain values go into its metadata as JSON. Directions, batches, the clock's
random times and seeded noise are functions of the position, so no generator state is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch

from dpzv.durable import readable, write_tensors
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Evaluation
from dpzv.protocol.server import Delays, Server
from dpzv.protocol.table import Blocks, Table
from dpzv.runtime.clock import VirtualClock
from dpzv.runtime.journal import Meter, Untrained
from dpzv.runtime.mapped_table import put_back

__all__ = [
    "Progress",
    "Simulated",
    "load",
    "load_tests",
    "load_untrained",
    "rounds",
    "save",
    "save_tests",
    "save_untrained",
    "save_weights",
]


class Progress(msgspec.Struct, frozen=True):
    """The plain values of a checkpoint. The names of the fields are the file's format.

    `clock` is in the order of `VirtualClock.state`, and `lengths` are those of metrics and transcript, in this order.
    """

    t: int
    positions: list[int]
    times: list[int]
    delays: Delays
    zeroed: list[int]
    clipped: list[int]
    clock: list[tuple[float, int]]
    meter: Meter
    seconds: float
    targets: dict[str, dict[str, float]]
    lengths: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Simulated:
    """The devices and the clock of a simulated run, which are kept and restored together with its server."""

    devices: Sequence[Device]
    clock: VirtualClock


def _tensors(server: Server, beside: Simulated | None) -> dict[str, torch.Tensor]:
    """Everything that is kept besides the table's rows, by name; each tensor is the one in use, not a copy.

    The names are the file's format.
    """
    tensors = {"times": torch.from_numpy(server.table.times)}
    if server.table.sums is not None:  # kept, since sums computed anew from the table differ in the last digit
        tensors["sums"] = server.table.sums
    noise = server.method.head_rule.noise_state
    tensors |= {f"server/noise-{i}": torch.from_numpy(array) for i, array in enumerate(noise)}
    for name, module, velocity in [
        ("server", server.method.head, server.method.head_rule.velocity),
        *((f"device-{d.m}", d.method.network, d.method.velocity) for d in (beside.devices if beside else ())),
    ]:
        tensors |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
        tensors |= {f"{name}/velocity-{i}": value for i, value in enumerate(velocity)}
    return tensors


def _rows(table: Table) -> dict[str, torch.Tensor]:
    """The table's rows as they lie, by name: in the order of the records, or by device in the order of its batches."""
    if isinstance(table.h, Blocks):
        return {f"table-{m}": part for m, part in enumerate(table.h.parts, 1)}
    return {"table": table.h}


def rounds(path: Path) -> int | None:
    """How many rounds a checkpoint knows of; `None` if there is none."""
    if not path.exists():
        return None
    with _readable(path), safetensors.safe_open(path, "pt") as file:
        return _progress(file.metadata()).t


def save(path: Path, server: Server, progress: Progress, beside: Simulated | None) -> None:
    """Write the checkpoint; the old one stays until the new one is whole."""
    tensors = _rows(server.table) | _tensors(server, beside)
    write_tensors(path, tensors, {"progress": msgspec.json.encode(progress).decode()})


@torch.no_grad()
def load(path: Path, server: Server, beside: Simulated | None) -> Progress:
    """Put the server, and what is simulated beside it, back to where the checkpoint was taken."""
    with _readable(path), safetensors.safe_open(path, "pt") as file:
        progress = _progress(file.metadata())
        for name, tensor in _tensors(server, beside).items():
            tensor.copy_(file.get_tensor(name))
        put_back(server.table, server.schedules, file.get_tensor, by_device="table" not in set(file.keys()))
    server.t, server.delays, server.zeroed = progress.t, progress.delays, list(progress.zeroed)
    server.positions, server.times, server.clipped = map(list, (progress.positions, progress.times, progress.clipped))
    if beside is not None:
        for device in beside.devices:
            device.position = progress.positions[device.m - 1]
        beside.clock.restore(progress.clock)
    return progress


def save_tests(path: Path, tests: Sequence[Evaluation]) -> None:
    """Write the devices' last test embeddings; with them the server can end the run without any device.

    A tensor is called "m start", which is the file's format.
    """
    write_tensors(path, {f"{message.m} {message.start}": torch.tensor(message.h) for message in tests}, {})


def load_tests(path: Path) -> list[Evaluation]:
    """What `save_tests` wrote."""
    with _readable(path):
        found = {tuple(map(int, name.split())): h for name, h in safetensors.torch.load_file(path).items()}
        return [Evaluation(m, start, h.numpy()) for (m, start), h in sorted(found.items())]


def save_untrained(path: Path, untrained: Untrained) -> None:
    """Write the first fill of the table and the first test rows; the names of the tensors are the file's format."""
    write_tensors(path, {"table": untrained.table, "tests": untrained.rows}, {})


def load_untrained(path: Path, accelerator: str) -> Untrained:
    """What `save_untrained` wrote."""
    with _readable(path), safetensors.safe_open(path, "pt") as file:
        return Untrained(file.get_tensor("table").to(accelerator), file.get_tensor("tests").to(accelerator))


def _progress(metadata: dict[str, str]) -> Progress:
    return msgspec.json.decode(metadata["progress"], type=Progress)


def save_weights(folder: Path, beside: Simulated) -> None:
    """Write the weights of every simulated device into a file of its own."""
    for device in beside.devices:
        write_tensors(folder / f"device-{device.m}.safetensors", device.method.network.state_dict(), {})


def _readable(path: Path) -> AbstractContextManager[None]:
    return readable(path, "a checkpoint of this run", "start the run anew")
