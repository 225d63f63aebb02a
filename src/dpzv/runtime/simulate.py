"""A whole run in one process: real messages, real bytes, a virtual clock.

Every message passes through the codec, so the bytes counted are the bytes a network would carry, and the
server sees exactly what it would see there.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from dpzv import __version__
from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.methods.refit import refit
from dpzv.privacy.statement import statement
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Release
from dpzv.runtime import checkpoint
from dpzv.runtime.build import Parts, make_head
from dpzv.runtime.evaluate import Metrics, measure
from dpzv.runtime.gate import Gate
from dpzv.runtime.meter import Meter
from dpzv.runtime.record import RunFolder, write_tensors

__all__ = ["Observer", "Simulation", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far a run is; shown to whoever watches, never sent to a device."""

    stage: str
    t: int
    T: int
    metrics: Metrics | None
    bytes_total: int
    epsilon_spent: float
    epsilon: float


Observer = Callable[[Snapshot], bool]
"""Called after every round; returning false asks the run to stop at the next round, resumable."""


class Simulation:
    """A run between its parts and its folder. `restore` first when the folder has a checkpoint."""

    def __init__(self, config: Config, data: Dataset, parts: Parts, gate: Gate, folder: RunFolder, T: int) -> None:
        self._config, self._data, self._parts = config, data, parts
        self._gate, self._folder, self._T = gate, folder, T
        self._meter = Meter()
        self._targets: dict[str, dict[str, float]] = {}
        self._metrics: Metrics | None = None
        self._epsilon_spent = 0.0  # as of the last evaluation: with a sampled head it costs a second
        self._seconds_before = 0.0
        self._began = self._saved = time.monotonic()
        self._filled = False  # the first checkpoint is taken after the first fill

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of this run, over all its sittings."""
        return self._seconds_before + time.monotonic() - self._began

    def restore(self) -> None:
        """Go back to the last checkpoint, or to the start if there is none yet."""
        lengths = (0, 0)
        if self._folder.checkpoint.exists():
            parts = self._parts
            progress = checkpoint.load(self._folder.checkpoint, parts.devices, parts.server, parts.clock)
            self._filled = True
            self._meter, self._targets = progress.meter, dict(progress.targets)
            self._seconds_before, lengths = progress.seconds, progress.lengths
        self._folder.cut(lengths)

    def run(self, observe: Observer, max_seconds: float = float("inf")) -> dict[str, Any] | None:
        """Run to the end and return the summary, or `None` if the observer stopped the run (resumable).

        After `max_seconds` no further round is begun; the final head and the summary follow as usual.
        """
        server = self._parts.server
        if not self._filled:
            if self._config.table.start == "fill":
                self._fill(observe)
            self._evaluate()
            self._save()
        while server.t < self._T and self.seconds < max_seconds:
            self.round()
            if server.t % self._config.train.eval_every == 0 or server.t == self._T:
                self._evaluate()
            if time.monotonic() - self._saved > self._config.runtime.checkpoint_seconds:
                self._save()
            if not observe(self._snapshot("rounds")):
                self._save()
                return None
        if self._T == 0:
            server.train_head(self._gate.head_steps(0))
        observe(self._snapshot("final head"))
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
        sha256 = hashlib.sha256(frame)
        release = self._gate.release(pending, sha256.digest())
        server.accept(release, self._gate.head_steps(release.t))
        answer = codec.encode(release)
        received = codec.decode(answer)
        assert isinstance(received, Release)
        device.receive(received)
        parts.clock.answered(m, device.position)
        self._folder.transcript(release.t, m, _exactly(release.Delta), sha256.hexdigest())
        self._meter.bytes_up += len(frame)
        self._meter.bytes_down += len(answer)
        width, arrays = message.h[0].shape[1], len(message.h)
        self._meter.payload_bytes += codec.embeddings_bytes(pending.B, width, arrays)
        self._meter.payload_bytes += codec.answer_bytes(len(release.Delta))

    def _fill(self, observe: Observer) -> None:
        for device, codec in zip(self._parts.devices, self._parts.codecs, strict=True):
            for message in device.fill():
                frame = codec.encode(message)
                received = codec.decode(frame)
                assert isinstance(received, Fill)
                self._parts.server.fill(received)
                self._meter.bytes_up += len(frame)
                self._meter.bytes_initial += len(frame)
                self._meter.payload_bytes += codec.row_bytes(received.h.shape[1]) * len(received.h)
            observe(self._snapshot("first fill of the table"))

    def _test_rows(self) -> torch.Tensor:
        messages = []
        for device, codec in zip(self._parts.devices, self._parts.codecs, strict=True):
            for message in device.evaluate():
                frame = codec.encode(message)
                self._meter.bytes_eval += len(frame)
                received = codec.decode(frame)
                assert isinstance(received, Evaluation)
                messages.append(received)
        return self._parts.server.evaluation_rows(messages, len(self._parts.y_test))

    def _evaluate(self) -> None:
        """Measure the head in the loop, write a line of metrics, note targets passed."""
        parts, server, meter = self._parts, self._parts.server, self._meter
        self._metrics = measure(server.rule.head, self._test_rows(), parts.y_test, parts.task, parts.loss)
        self._epsilon_spent = self._gate.epsilon_spent
        self._folder.metric(
            {
                "round": server.t,
                "seconds": round(self.seconds, 3),
                "virtual_seconds": parts.clock.seconds,
                **msgspec.to_builtins(self._metrics),
                "bytes_up": meter.bytes_up,
                "bytes_down": meter.bytes_down,
                "epsilon_spent": self._epsilon_spent,
                "mean_delay": server.mean_delay,
            }
        )
        for target in self._config.train.target:
            if (self._metrics.test_accuracy or 0.0) >= target and str(target) not in self._targets:
                self._targets[str(target)] = {
                    "round": server.t,
                    "bytes": meter.bytes_up + meter.bytes_down,
                    "virtual_seconds": parts.clock.seconds,
                }

    def _snapshot(self, stage: str) -> Snapshot:
        meter = self._meter
        return Snapshot(
            stage,
            self._parts.server.t,
            self._T,
            self._metrics,
            meter.bytes_up + meter.bytes_down,
            self._epsilon_spent,
            self._gate.plan.claimed_epsilon,
        )

    def _save(self) -> None:
        """Make ledger and logs durable first: a checkpoint never knows more than they do."""
        self._gate.ledger.flush()
        parts, server = self._parts, self._parts.server
        progress = checkpoint.Progress(
            t=server.t,
            positions=server.positions,
            times=server.times,
            delay_count=server.delay_count,
            clock=parts.clock.state(),
            meter=self._meter,
            seconds=self.seconds,
            targets=self._targets,
            lengths=self._folder.lengths(),
        )
        checkpoint.save(self._folder.checkpoint, parts.devices, server, progress)
        self._saved = time.monotonic()

    def _finish(self) -> dict[str, Any]:
        """Fit the final head, write weights and, last of all, the summary."""
        self._save()
        parts, server, head_config = self._parts, self._parts.server, self._config.head
        rows = self._test_rows()
        private = measure(server.rule.head, rows, parts.y_test, parts.task, parts.loss)
        final, weights = private, self._folder.path / "weights"
        write_tensors(weights / "server.safetensors", server.rule.head.state_dict(), {})
        if head_config.final == "refit":
            head = make_head(self._config, server.table.h.shape[1], parts.outputs, "final")
            refit(
                head,
                server.table.h,
                server.y_train,
                parts.loss,
                epochs=head_config.refit_epochs,
                batch=head_config.refit_batch,
                eta=head_config.refit_eta,
                seed=self._config.train.seed,
            )
            final = measure(head, rows, parts.y_test, parts.task, parts.loss)
            # a file of its own: w_0 may leave the server, the refitted head may not
            write_tensors(weights / "final.safetensors", head.state_dict(), {})
        for device in parts.devices:
            write_tensors(weights / f"device-{device.m}.safetensors", device.rule.network.state_dict(), {})
        self._epsilon_spent = self._gate.epsilon_spent
        summary = self._summary(final, private)
        self._gate.ledger.flush()
        self._folder.lengths()
        self._folder.summary(summary)
        return summary

    def _summary(self, final: Metrics, private: Metrics) -> dict[str, Any]:
        config, plan, server = self._config, self._gate.plan, self._parts.server
        told = statement(
            plan,
            noise_source=config.noise.source,
            releases=self._gate.ledger.releases,
            epsilon_spent=self._epsilon_spent,
            head_steps=self._gate.ledger.head_steps,
            run_id=self._gate.ledger.run_id,
        )
        return {
            "schema": 1,
            "recipe": config.recipe,
            "method": config.train.method,
            "head_rule": config.head.rule,
            "rounds": server.t,
            "seconds": round(self.seconds, 3),
            "virtual_seconds": self._parts.clock.seconds,
            "test_accuracy": final.test_accuracy,
            "test_auc": final.test_auc,
            "test_loss": final.test_loss,
            "private_head": msgspec.to_builtins(private),
            **msgspec.to_builtins(self._meter),
            "targets": self._targets,
            "epsilon": told.epsilon,
            "epsilon_zero_out": told.epsilon_zero_out,
            "epsilon_replace_one": told.epsilon_replace_one,
            "epsilon_spent": told.epsilon_spent,
            "delta_dp": plan.delta_dp,
            "mu": plan.mu,
            "sigma_dp": plan.sigma_dp,
            "accounting": plan.accounting,
            "neighbours": plan.neighbours,
            "protects": plan.protects,
            "noise_source": config.noise.source,
            "guarantee": told.guarantee,
            "guarantee_why": told.guarantee_why,
            "statement": told.text(),
            "mean_delay": server.mean_delay,
            "max_delay": server.max_delay,
            "seed": config.train.seed,
            "versions": {
                "dpzv": __version__,
                "python": platform.python_version(),
                "torch": str(torch.__version__),
            },
            "data": {
                "name": self._data.name,
                "records": len(self._data.y_train),
                "fingerprint": self._data.fingerprint,
            },
        }


def _exactly(Delta: NDArray[np.float64]) -> str:
    """One number as a hex float; several (a rival's answer) as the hash of their bytes."""
    if len(Delta) == 1:
        return float(Delta[0]).hex()
    return "sha256:" + hashlib.sha256(Delta.tobytes()).hexdigest()
