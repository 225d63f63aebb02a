"""A whole run in one process: real messages, real bytes, a virtual clock.

Every message passes through the codec, so the bytes counted are the bytes a network would carry, and the
server sees exactly what it would see there.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release
from dpzv.runtime import checkpoint
from dpzv.runtime.build import Parts
from dpzv.runtime.gate import Gate
from dpzv.runtime.journal import Journal, Judge, Observer
from dpzv.runtime.run_folder import RunFolder, write_tensors

__all__ = ["Simulation", "exactly"]


class Simulation:
    """A run between its parts and its folder. `restore` first when the folder has a checkpoint."""

    def __init__(self, config: Config, data: Dataset, parts: Parts, gate: Gate, folder: RunFolder, T: int) -> None:
        self._config, self._parts, self._gate, self._folder, self._T = config, parts, gate, folder, T
        described = {"name": data.name, "records": len(data.y_train), "fingerprint": data.fingerprint}
        judge = Judge(parts.task, parts.loss, parts.outputs, parts.y_test, described)
        self._journal = Journal(config, judge, parts.server, gate, folder)
        self._filled = False  # the first checkpoint is taken after the first fill

    def restore(self) -> None:
        """Go back to the last checkpoint, or to the start if there is none yet."""
        lengths = (0, 0)
        if self._folder.checkpoint.exists():
            parts, journal = self._parts, self._journal
            progress = checkpoint.load(self._folder.checkpoint, parts.devices, parts.server, parts.clock)
            self._filled = True
            journal.meter, journal.targets = progress.meter, dict(progress.targets)
            journal.seconds_before, lengths = progress.seconds, progress.lengths
        self._folder.cut(lengths)

    def run(self, observe: Observer, max_seconds: float = float("inf")) -> dict[str, Any] | None:
        """Run to the end and return the summary, or `None` if the observer stopped the run (resumable).

        After `max_seconds` no further round is begun; the final head and the summary follow as usual.
        """
        server, journal = self._parts.server, self._journal
        if not self._filled:
            if self._config.table.start == "fill":
                self._fill(observe)
            self._evaluate()
            self._save()
        while server.t < self._T and journal.seconds < max_seconds:
            self.round()
            if server.t % self._config.train.eval_every == 0 or server.t == self._T:
                self._evaluate()
            if journal.checkpoint_due:
                self._save()
            if not observe(journal.snapshot("rounds")):
                self._save()
                return None
        if self._T == 0:
            server.train_head(self._gate.head_steps(0))
        observe(journal.snapshot("final head"))
        return self._finish()

    def round(self) -> None:
        """One round: ask, gate, accept, apply."""
        parts, server = self._parts, self._parts.server
        m = parts.clock.next().m
        device, codec = parts.devices[m - 1], parts.codecs[m - 1]
        frame = codec.encode(device.upload())
        message = codec.decode(frame)
        assert isinstance(message, Embeddings)
        pending = server.ask(message, self._gate.contributes(server.t + 1, message))
        digest = xxh3_128_digest(frame)
        release = self._gate.release(pending, digest)
        server.accept(release, self._gate.head_steps(release.t))
        answer = codec.encode(release)
        received = codec.decode(answer)
        assert isinstance(received, Release)
        device.receive(received)
        parts.clock.answered(m, device.position)
        self._folder.transcript(release.t, m, exactly(release.Delta), digest.hex())
        self._journal.meter.bytes_up += len(frame)
        self._journal.meter.bytes_down += len(answer)
        self._journal.meter.payload_bytes += codec.payload_bytes(message) + codec.payload_bytes(release)

    def _fill(self, observe: Observer) -> None:
        for device, codec in zip(self._parts.devices, self._parts.codecs, strict=True):
            for message in device.fill():
                frame = codec.encode(message)
                received = codec.decode(frame)
                assert isinstance(received, Fill)
                self._parts.server.fill(received)
                self._journal.meter.bytes_up += len(frame)
                self._journal.meter.bytes_initial += len(frame)
                self._journal.meter.payload_bytes += codec.payload_bytes(received)
            observe(self._journal.snapshot("first fill of the table"))

    def _test_rows(self) -> torch.Tensor:
        messages = []
        for device, codec in zip(self._parts.devices, self._parts.codecs, strict=True):
            for message in device.evaluate():
                frame = codec.encode(message)
                self._journal.meter.bytes_eval += len(frame)
                received = codec.decode(frame)
                assert isinstance(received, Evaluation)
                messages.append(received)
        return self._parts.server.evaluation_rows(messages, len(self._parts.y_test))

    def _evaluate(self) -> None:
        self._journal.evaluate(self._test_rows(), self._parts.clock.seconds)

    def _save(self) -> None:
        self._journal.save(self._parts.devices, self._parts.clock.state())

    def _finish(self) -> dict[str, Any]:
        """Write the devices' weights, then let the journal end the run."""
        self._save()
        for device in self._parts.devices:
            path = self._folder.path / "weights" / f"device-{device.m}.safetensors"
            write_tensors(path, device.method.network.state_dict(), {})
        return self._journal.finish(self._test_rows(), self._parts.clock.seconds)


def exactly(Delta: NDArray[np.float64]) -> str:
    """One number as a hex float; several (a rival's answer) as the hash of their bytes."""
    if len(Delta) == 1:
        return float(Delta[0]).hex()
    return "sha256:" + hashlib.sha256(Delta.tobytes()).hexdigest()
