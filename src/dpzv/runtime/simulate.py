"""A whole run in one process: real messages, real bytes, a virtual clock that drives the server's run.

Every message passes through the codec, so the bytes counted are the bytes a network would carry, and the
server sees exactly what it would see there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.privacy.noise import NoiseSource
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release
from dpzv.runtime.assemble_device import make_device, uplink_of
from dpzv.runtime.checkpoint import Simulated, save_weights
from dpzv.runtime.clock import VirtualClock, speeds_of
from dpzv.runtime.device_networks import Networks, make_networks
from dpzv.runtime.device_view import view_logs
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import ServerParts, named_parents, noise_of, plan_of, sizes_of, warn
from dpzv.runtime.server_run import Observer, ServerRun

__all__ = ["Simulation"]


class Simulation:
    """A run of `config` on `data`. Making one refuses what cannot run, before anything is written.

    `round` and `run` work inside ``with simulation.opened(folder)``.
    """

    server_run: ServerRun

    def __init__(
        self,
        config: Config,
        data: Dataset,
        networks: Networks | None = None,
        begun: Path | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        """`begun` is the folder of a run that goes on; `noise` and `networks` replace those of the configuration."""
        noise = noise or noise_of(config)
        parents = named_parents(config, data.names, begun)
        plan = plan_of(config, len(data.y_train), len(data.x_train), parents)
        self._speeds = speeds_of(config, plan.M)
        sizes, uplink = sizes_of(config, plan.D, plan.M), uplink_of(config, plan, noise)
        networks = networks or partial(make_networks, config, data)
        made = [
            make_device(config, m, network, torch.from_numpy(x), torch.from_numpy(x_test), sizes, uplink)
            for m, (network, x, x_test) in enumerate(
                zip(networks(plan, noise), data.x_train, data.x_test, strict=True), 1
            )
        ]
        self.devices = [device for device, _ in made]
        self._widths = tuple(width for _, width in made)
        self._given = ServerParts(config, data.server_records(), self._widths, plan, noise)

    @contextmanager
    def opened(self, folder: RunFolder) -> Iterator[None]:
        """Inside the block the run is open in `folder`, at its start or where it was interrupted."""
        with ServerRun(self._given, folder) as self.server_run:
            self.clock = self._started_clock()
            self._beside = Simulated(self.devices, self.clock)
            self.server_run.restore(self._beside)
            run = self.server_run
            logs = view_logs(folder.path, self.devices, self._widths, run.plan, run.server.method, begun=run.begun)
            with ExitStack() as stack:
                self.views = [stack.enter_context(log) for log in logs]
                yield

    def run(self, observe: Observer, max_seconds: float = float("inf")) -> dict[str, Any] | None:
        """Run to the end and return the summary, or `None` if the observer stopped the run (resumable).

        After `max_seconds` no further round is begun; the final head and the summary follow as usual.
        """
        run, journal = self.server_run, self.server_run.journal
        self.begin(observe)
        while not run.done and journal.seconds < max_seconds:
            self.round()
            if run.evaluation_due:
                self.evaluate()
            if run.checkpoint_due:
                self.save()
            if not observe(journal.snapshot("rounds")):
                self.save()
                return None
        return self.finish(observe)

    def begin(self, observe: Observer) -> None:
        """Fill the table, evaluate and write the first checkpoint, unless the run is begun already."""
        run = self.server_run
        if not run.begun:
            warn(run.plan)
            if run.config.table.start == "fill":
                self._fill(observe)
            self.evaluate()
            self.save()
            run.begun = True

    def round(self) -> None:
        """One round: the next device in virtual time that has one left sends its batch, and the server answers it."""
        run, m = self.server_run, self.next_device()
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
        if self.views:
            self.views[m - 1].keep(message, release)
        self.clock.answered(m, device.position)

    def next_device(self) -> int:
        """The device whose batch arrives next; one that has had all its rounds does not come back."""
        while not self.server_run.has_round(m := self.clock.next().m):
            pass
        return m

    def evaluate(self) -> None:
        """Measure the head in the loop on the test records."""
        self.server_run.evaluate(self._tests(), self.clock.seconds)

    def save(self) -> None:
        """Write a checkpoint."""
        self.server_run.save(self._beside)

    def finish(self, observe: Observer) -> dict[str, Any]:
        """Write the devices' weights, then let the server end the run."""
        run = self.server_run
        if run.plan.T == 0:
            run.train_head_alone()
        observe(run.journal.snapshot("final head"))
        self.save()
        save_weights(run.folder.path / "weights", self._beside)
        return run.finish(self._tests(), self.clock.seconds)

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

    def _started_clock(self) -> VirtualClock:
        """The clock at its start; it knows the bytes up and down of one batch of each device, without framing."""
        run, widths = self.server_run, self._widths
        B, method, up, down = run.plan.B, run.server.method, [], []
        for m, (codec, width) in enumerate(zip(run.codecs, widths, strict=True), 1):
            h = np.empty((B, width), np.float32)
            up.append(codec.payload_bytes(Embeddings(m, 0, (h,) * method.arrays)))
            down.append(codec.payload_bytes(Release(0, m, 0, np.empty(method.numbers(B, width)))))
        return VirtualClock(self._speeds, tuple(up), tuple(down), run.config.train.seed)
