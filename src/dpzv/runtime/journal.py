"""What a run writes down at the server: metrics as it goes, and at its end the final head and the summary.

The same whether devices are objects in this process or other organisations: it needs their test embeddings, not them.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from dpzv.config import Config
from dpzv.durable import write_tensors
from dpzv.methods.refit import refit
from dpzv.metrics import Metrics
from dpzv.models.losses import Loss
from dpzv.privacy.statement import statement
from dpzv.protocol.device import Device
from dpzv.protocol.server import Server
from dpzv.runtime import checkpoint
from dpzv.runtime.evaluate import measure
from dpzv.runtime.gate import Gate
from dpzv.runtime.meter import Meter
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.sides import make_head
from dpzv.terms import Task
from dpzv.version import VERSION

__all__ = ["Journal", "Judge", "Observer", "Snapshot"]

AT_STAKE = 0.02
"""The share of a head's steps after which a checkpoint is written: what a crash may cost of them."""


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


@dataclass(frozen=True, slots=True)
class Judge:
    """What the server knows to measure a head: the task, its loss and the test labels; and the data's name."""

    task: Task
    loss: Loss
    outputs: int
    y_test: torch.Tensor
    data: dict[str, Any]


class Journal:
    """A run's figures so far. `meter`, `targets` and `seconds_before` are restored from a checkpoint."""

    def __init__(self, config: Config, judge: Judge, server: Server, gate: Gate, folder: RunFolder) -> None:
        self._config, self._judge, self._server = config, judge, server
        self._gate, self._folder = gate, folder
        self.meter = Meter()
        self.targets: dict[str, dict[str, float]] = {}
        self.metrics: Metrics | None = None
        self.seconds_before = 0.0
        self._epsilon_spent = 0.0  # as of the last evaluation: with a sampled head it costs a second
        self._began = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of this run, over all its sittings."""
        return self.seconds_before + time.monotonic() - self._began

    @property
    def D_test(self) -> int:
        """How many test records there are."""
        return len(self._judge.y_test)

    @property
    def checkpoint_due(self) -> bool:
        """Whether it is time for one, by the clock or by the head steps that a crash would forfeit."""
        late = time.monotonic() - self._saved > self._config.runtime.checkpoint_seconds
        return late or self._gate.at_stake >= AT_STAKE

    def save(self, devices: list[Device], clock: list[tuple[float, int]]) -> None:
        """Make ledger and logs durable, then write the checkpoint: it never knows more than they do."""
        self._gate.ledger.flush()
        server = self._server
        progress = checkpoint.Progress(
            t=server.t,
            positions=server.positions,
            times=server.times,
            delays=server.delays,
            clock=clock,
            meter=self.meter,
            seconds=self.seconds,
            targets=self.targets,
            lengths=self._folder.lengths(),
        )
        checkpoint.save(self._folder.checkpoint, devices, server, progress)
        self._gate.kept()
        self._saved = time.monotonic()

    def evaluate(self, rows: torch.Tensor, virtual_seconds: float) -> None:
        """Measure the head in the loop on test rows, write a line of metrics, note targets passed."""
        server, meter, judge = self._server, self.meter, self._judge
        self.metrics = measure(server.method.head, rows, judge.y_test, judge.task, judge.loss)
        self._epsilon_spent = self._gate.epsilon_spent
        self._folder.metric(
            {
                "round": server.t,
                "seconds": round(self.seconds, 3),
                "virtual_seconds": virtual_seconds,
                **msgspec.to_builtins(self.metrics),
                "bytes_up": meter.bytes_up,
                "bytes_down": meter.bytes_down,
                "epsilon_spent": self._epsilon_spent,
                "mean_delay": server.delays.mean,
            }
        )
        for target in self._config.train.target:
            if (self.metrics.test_accuracy or 0.0) >= target and str(target) not in self.targets:
                self.targets[str(target)] = {
                    "round": server.t,
                    "bytes": meter.bytes_up + meter.bytes_down,
                    "virtual_seconds": virtual_seconds,
                }

    def snapshot(self, stage: str) -> Snapshot:
        """How far the run is."""
        return Snapshot(
            stage,
            self._server.t,
            self._gate.plan.T,
            self.metrics,
            self.meter.bytes_up + self.meter.bytes_down,
            self._epsilon_spent,
            self._gate.plan.claimed_epsilon,
        )

    def finish(self, rows: torch.Tensor, virtual_seconds: float) -> dict[str, Any]:
        """Fit the final head, write the server's weights and, last of all, the summary."""
        judge, server, head_config = self._judge, self._server, self._config.head
        private = measure(server.method.head, rows, judge.y_test, judge.task, judge.loss)
        final, weights = private, self._folder.path / "weights"
        write_tensors(weights / "server.safetensors", server.method.head.state_dict(), {})
        if head_config.final == "refit":
            head = make_head(self._config, server.table.h.shape[1], judge.outputs, "final")
            refit(
                head,
                server.table.h,
                server.y_train,
                judge.loss,
                epochs=head_config.refit_epochs,
                batch=head_config.refit_batch,
                eta=head_config.refit_eta,
                seed=self._config.train.seed,
            )
            final = measure(head, rows, judge.y_test, judge.task, judge.loss)
            # a file of its own: w_0 may leave the server, the refitted head may not
            write_tensors(weights / "final.safetensors", head.state_dict(), {})
        self._epsilon_spent = self._gate.epsilon_spent
        summary = self._summary(final, private, virtual_seconds)
        self._gate.ledger.flush()
        self._folder.lengths()
        self._folder.summary(summary)
        return summary

    def _summary(self, final: Metrics, private: Metrics, virtual_seconds: float) -> dict[str, Any]:
        config, plan, server = self._config, self._gate.plan, self._server
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
            "virtual_seconds": virtual_seconds,
            "test_accuracy": final.test_accuracy,
            "test_auc": final.test_auc,
            "test_loss": final.test_loss,
            "private_head": msgspec.to_builtins(private),
            **msgspec.to_builtins(self.meter),
            "targets": self.targets,
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
            "mean_delay": server.delays.mean,
            "max_delay": server.delays.most,
            "seed": config.train.seed,
            "versions": {
                "dpzv": VERSION,
                "python": platform.python_version(),
                "torch": str(torch.__version__),
            },
            "data": self._judge.data,
        }
