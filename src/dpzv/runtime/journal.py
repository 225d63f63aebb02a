"""What a run writes down at the server: metrics as it goes, and at its end the final head and the summary.

It needs only the devices' test embeddings, so it does not matter whether they are objects in this process or belong to
other organisations. Test metrics stay with the server: nothing here is sent to a device.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from dpzv.config import Config
from dpzv.data.dataset import Dataset, ServerRecords
from dpzv.declarations import head_rule_facts
from dpzv.durable import write_tensors
from dpzv.methods.refit import Chosen, Refit, refit
from dpzv.metrics import Metrics
from dpzv.models.losses import labels_of, per_record_loss
from dpzv.privacy.statement import RunSpent, statement
from dpzv.protocol.server import Server
from dpzv.runtime.gate import Gate
from dpzv.runtime.run_folder import RunFolder
from dpzv.version import VERSION

__all__ = ["Journal", "Meter", "Snapshot", "Untrained", "measured"]


class Meter(msgspec.Struct):
    """Bytes of a run so far: the lengths of encoded frames."""

    bytes_up: int = 0
    """All frames from devices for training, the first fill included."""
    bytes_down: int = 0
    """All frames to devices."""
    bytes_initial: int = 0
    """The part of `bytes_up` that filled the table first."""
    bytes_eval: int = 0
    """Frames uploaded only to evaluate; no other figure includes them."""
    payload_bytes: int = 0
    """The part of up and down that is numbers, without framing: what the paper counts."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Untrained:
    """What the devices' weights give before the first round: the server's table, and the test rows."""

    table: torch.Tensor
    rows: torch.Tensor


class Journal:
    """A run's figures so far. `meter`, `targets` and `seconds_before` are restored from a checkpoint."""

    def __init__(self, config: Config, records: ServerRecords, server: Server, gate: Gate, folder: RunFolder) -> None:
        self._config, self._records, self._server = config, records, server
        self._gate, self._folder = gate, folder
        self._y_test = labels_of(records.y_test, records.task, config.runtime.accelerator)
        self.meter = Meter()
        self.targets: dict[str, dict[str, float]] = {}
        self.metrics: Metrics | None = None
        self.tested: set[int] = set()  # the devices whose test embeddings the final metrics have
        self.seconds_before = 0.0
        self._epsilon_spent = 0.0  # as of the last `account`: with a sampled head it takes a second to compute
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of this run, without the time between an interruption and its resume."""
        return self.seconds_before + time.monotonic() - self._began

    def account(self) -> None:
        """Compute what the run has spent so far; snapshots show this figure until the next call."""
        self._epsilon_spent = self._gate.epsilon_spent

    def evaluate(self, rows: torch.Tensor, virtual_seconds: float) -> None:
        """Measure the head in the loop on test rows, write a line of metrics, and note the targets reached."""
        server, meter = self._server, self.meter
        self.metrics = found = self._measure(server.method.head, rows)
        self.account()
        self._folder.metric(
            {
                "round": server.t,
                "seconds": round(self.seconds, 3),
                "virtual_seconds": virtual_seconds,
                **msgspec.to_builtins(found),
                "bytes_up": meter.bytes_up,
                "bytes_down": meter.bytes_down,
                "epsilon_spent": self._epsilon_spent,
                "mean_delay": server.delays.mean,
            }
        )
        for target in self._config.train.target:
            if (found.test_accuracy or 0.0) >= target and str(target) not in self.targets:
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

    def finish(
        self,
        rows: torch.Tensor,
        virtual_seconds: float,
        table: Callable[[], torch.Tensor],
        untrained: Untrained | None,
    ) -> dict[str, Any]:
        """Fit the final head to all rows of the `table`, write the server's weights and, last of all, the summary.

        The summary also has the figures of the same fit to what `untrained` devices sent: they say what training added.
        """
        server, weights = self._server, self._folder.path / "weights"
        final = private = self._measure(server.method.head, rows)
        write_tensors(weights / "server.safetensors", server.method.head.state_dict(), {})
        chosen = None
        if self._config.head.final != "private":
            head, chosen = self._best_head(table())
            final = self._measure(head, rows)
            # a file of its own: w_0 may leave the server, the final head may not
            write_tensors(weights / "final.safetensors", head.state_dict(), {})
        self.account()
        summary = self._summary(final, private, virtual_seconds) | {
            "final_head": msgspec.to_builtins(chosen),
            "untrained": self._before(untrained) if chosen and untrained else None,
        }
        self._gate.ledger.flush()
        self._folder.lengths()
        self._folder.summary(summary)
        return summary

    def _before(self, untrained: Untrained) -> dict[str, Any]:
        """The figures of the devices as they started: one upload of all records, and nothing ever came back."""
        head, chosen = self._best_head(untrained.table)
        found = msgspec.to_builtins(self._measure(head, untrained.rows))
        return {**found, "bytes_up": self.meter.bytes_initial, "final_head": msgspec.to_builtins(chosen)}

    def _best_head(self, table: torch.Tensor) -> tuple[torch.nn.Module, Chosen]:
        """A second head, fitted to a table without noise, and how it was chosen; it stays at the server."""
        server, config = self._server, self._config
        how = Refit(
            outputs=self._records.outputs,
            hidden=config.head.hidden,
            seed=config.train.seed,
            task=self._records.task,
            steps=config.head.refit_steps,
            balanced=config.head.class_weight == "balanced",
            choose=config.head.final == "best",
        )
        return refit(table, server.y_train, how)

    @torch.no_grad()
    def _measure(self, head: torch.nn.Module, rows: torch.Tensor) -> Metrics:
        """Metrics of `head` on test rows [D_test, k_1+...+k_M]."""
        return measured(self._records, head(rows), self._y_test)

    def _head_trained(self) -> bool:
        """Whether the head in the loop was trained.

        A head that only adds counts as trained once its devices have moved.
        """
        head, rounds = self._config.head, self._server.t > 0
        if head.model == "sum":
            return rounds
        return head_rule_facts(head.rule).moves and (rounds or self._gate.ledger.head_steps > 0)

    def _participation(self) -> list[dict[str, Any]]:
        """How much of the run is each device's: its rounds, how old its rows were when others' rounds used them, its
        rows that were beyond the bound on embeddings, the share of its records that were clipped, and whether it sent
        test embeddings; zeros stand in their place if not.
        """
        server, plan, named = self._server, self._gate.plan, self._config.network.devices
        numbers = self._config.data.devices or range(1, plan.M + 1)
        names = [named[m - 1] if m <= len(named) else f"device {m}" for m in numbers]
        return [
            {
                "device": name,
                "rounds": server.positions[i],
                "mean_delay": server.delays.mean_of(i + 1),
                "zeroed_rows": server.zeroed[i],
                "clipped_share": round(server.clipped[i] / max(1, server.positions[i] * plan.B), 4),
                "tested": i + 1 in self.tested,
            }
            for i, name in enumerate(names)
        ]

    def _summary(self, final: Metrics, private: Metrics, virtual_seconds: float) -> dict[str, Any]:
        config, plan, server, records = self._config, self._gate.plan, self._server, self._records
        ledger = self._gate.ledger
        run = RunSpent(
            plan=plan,
            noise_source=config.noise.source,
            releases=ledger.releases,
            epsilon_spent=self._epsilon_spent,
            head_steps=ledger.head_steps,
            run_id=ledger.run_id,
        )
        told = statement(run)
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
            "test_r2": final.test_r2,
            "test_rmse": final.test_rmse,
            "private_head": {**msgspec.to_builtins(private), "trained": self._head_trained()},
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
            "participation": self._participation(),
            "seed": config.train.seed,
            "versions": {"dpzv": VERSION, "python": platform.python_version(), "torch": str(torch.__version__)},
            "data": {"name": records.name, "records": len(records.y_train), "fingerprint": records.fingerprint},
        }


def measured(records: ServerRecords | Dataset, output: torch.Tensor, y: torch.Tensor) -> Metrics:
    """Metrics of a head's `output` [D_test, n] on the test records, whose labels as the loss takes them are `y`."""
    task = records.task
    test_loss = float(per_record_loss(task)(output, y).mean())
    if task == "regression":
        return _of_numbers(records, output.squeeze(1).double(), y.double(), test_loss)
    if task == "classes":
        return Metrics(float((output.argmax(dim=1) == y).double().mean()), None, test_loss)
    score = output.squeeze(1)
    accuracy = float(((score > 0) == (y > 0.5)).double().mean())
    both = 0 < float(y.mean()) < 1  # the area is undefined on test records of one class
    return Metrics(accuracy, _auc(y, score) if both else None, test_loss)


def _of_numbers(records: ServerRecords | Dataset, output: torch.Tensor, y: torch.Tensor, loss: float) -> Metrics:
    """R^2, the explained share of the test labels' variance, and the root of the mean squared error in their units."""
    squares, spread = float((output - y).square().mean()), float((y - y.mean()).square().mean())
    return Metrics(None, None, loss, 1 - squares / spread if spread else None, records.unit * math.sqrt(squares))


def _auc(y: torch.Tensor, score: torch.Tensor) -> float:
    """The area under the ROC curve by trapezoids: to the last bit that of scikit-learn, which is slow to import."""
    ranked = score.nan_to_num(0.0).numpy(force=True)  # a head that diverged ranks nothing: an area of one half
    order = np.argsort(-ranked, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(ranked[order])), len(ranked) - 1)  # equal scores are one step of the curve
    right = np.cumsum(y.numpy(force=True)[order], dtype=np.float64)[ends]
    wrong = 1 + ends - right
    corner = np.append(True, np.append((np.diff(wrong, 2) != 0) | (np.diff(right, 2) != 0), True)[: len(ends) - 1])
    up, along = (np.append(0.0, counts[corner] / counts[-1]) for counts in (right, wrong))
    return float((np.diff(along) * (up[1:] + up[:-1]) / 2.0).sum())
