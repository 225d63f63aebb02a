"""A whole run in one process: real messages, real bytes, a virtual clock that drives the server's run.

Every message passes through the codec, so the bytes counted are the bytes a network would carry, and the
server sees exactly what it would see there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpzv.config import Config
from dpzv.data.dataset import Dataset, ServerRecords
from dpzv.durable import write_tensors
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release
from dpzv.runtime.assemble_device import make_device, uplink_of
from dpzv.runtime.checkpoint import Simulated
from dpzv.runtime.clock import VirtualClock, speeds_of
from dpzv.runtime.device_networks import Networks
from dpzv.runtime.journal import Observer
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import named_parents, noise_of, plan_of, sizes_of
from dpzv.runtime.server_run import ServerRun

__all__ = ["Simulation"]


class Simulation:
    """A run of `config` on `data`. Making one refuses what cannot run, before anything is written.

    `round` and `run` work inside ``with simulation.opened(folder)``.
    """

    server_run: ServerRun

    def __init__(self, config: Config, data: Dataset, networks: Networks, begun: Path | None = None) -> None:
        """`begun` is the folder of a run that is to go on."""
        self._config, self._data, self._noise = config, data, noise_of(config)
        parents = named_parents(config, data.names, begun)
        self._plan = plan_of(config, len(data.y_train), len(data.x_train), parents)
        self._speeds = speeds_of(config, self._plan.M)
        sizes, uplink = sizes_of(config, self._plan.D, self._plan.M), uplink_of(config, self._plan, self._noise)
        made = [
            make_device(config, m, network, torch.from_numpy(x), torch.from_numpy(x_test), sizes, uplink)
            for m, (network, x, x_test) in enumerate(
                zip(networks(self._plan, self._noise), data.x_train, data.x_test, strict=True), 1
            )
        ]
        self.devices = [device for device, _ in made]
        self._widths = tuple(width for _, width in made)
        outputs = data.n_classes if data.task == "classes" else 1
        names = data.fingerprint, data.names
        self._records = ServerRecords(data.name, data.task, outputs, data.y_train, data.y_test, *names)
        ServerRun.refuse(config, self._records, self._widths)

    @contextmanager
    def opened(self, folder: RunFolder) -> Iterator[None]:
        """Inside the block the run is open in `folder`, at its start or where it was interrupted."""
        with ServerRun(self._config, self._records, self._widths, self._plan, self._noise, folder) as self.server_run:
            self._clock = self._started_clock()
            self._beside = Simulated(self.devices, self._clock)
            self.server_run.restore(self._beside)
            yield

    def run(self, observe: Observer, max_seconds: float = float("inf")) -> dict[str, Any] | None:
        """Run to the end and return the summary, or `None` if the observer stopped the run (resumable).

        After `max_seconds` no further round is begun; the final head and the summary follow as usual.
        """
        run, journal = self.server_run, self.server_run.journal
        if not run.begun:
            if self._config.table.start == "fill":
                self._fill(observe)
            run.evaluate(self._tests(), self._clock.seconds)
            run.save(self._beside)
            run.begun = True
        while not run.done and journal.seconds < max_seconds:
            self.round()
            if run.evaluation_due:
                run.evaluate(self._tests(), self._clock.seconds)
            if run.checkpoint_due:
                self.server_run.save(self._beside)
            if not observe(journal.snapshot("rounds")):
                self.server_run.save(self._beside)
                return None
        if run.plan.T == 0:
            run.train_head_alone()
        observe(journal.snapshot("final head"))
        return self._finish()

    def round(self) -> None:
        """One round: the next device in virtual time that has one left sends its batch, and the server answers it."""
        run = self.server_run
        while not run.has_round(m := self._clock.next().m):
            pass  # this device has had all its rounds, and does not come back
        device, codec = self.devices[m - 1], run.codecs[m - 1]
        frame = codec.encode(device.upload())
        message = codec.decode(frame)
        assert isinstance(message, Embeddings)
        opened = run.begin(message, frame)
        run.commit(opened)
        run.close(opened)
        release = codec.decode(opened.answer)
        assert isinstance(release, Release)
        device.receive(release)
        self._clock.answered(m, device.position)

    def _fill(self, observe: Observer) -> None:
        run = self.server_run
        for device, codec in zip(self.devices, run.codecs, strict=True):
            for message in device.fill():
                frame = codec.encode(message)
                received = codec.decode(frame)
                assert isinstance(received, Fill)
                run.fill(received, len(frame))
            run.fill_ends(device.m)
            observe(run.journal.snapshot("first fill of the table"))

    def _tests(self) -> list[Evaluation]:
        """The test embeddings of all devices, as the server would receive them."""
        messages = []
        for device, codec in zip(self.devices, self.server_run.codecs, strict=True):
            for message in device.evaluate():
                frame = codec.encode(message)
                self.server_run.journal.meter.bytes_eval += len(frame)
                received = codec.decode(frame)
                assert isinstance(received, Evaluation)
                messages.append(received)
        return messages

    def _finish(self) -> dict[str, Any]:
        """Write the devices' weights, then let the server end the run."""
        self.server_run.save(self._beside)
        for device in self.devices:
            path = self.server_run.folder.path / "weights" / f"device-{device.m}.safetensors"
            write_tensors(path, device.method.network.state_dict(), {})
        return self.server_run.finish(self._tests(), self._clock.seconds)

    def _started_clock(self) -> VirtualClock:
        """The clock at its start; it knows the bytes up and down of one batch of each device, without framing."""
        run, config, widths = self.server_run, self._config, self._widths
        B, method, up, down = config.train.B, run.server.method, [], []
        for m, (codec, width) in enumerate(zip(run.codecs, widths, strict=True), 1):
            h = np.empty((B, width), np.float32)
            up.append(codec.payload_bytes(Embeddings(m, 0, (h,) * method.arrays)))
            down.append(codec.payload_bytes(Release(0, m, 0, np.empty(method.numbers(B, width)))))
        return VirtualClock(self._speeds, tuple(up), tuple(down), config.train.seed)
