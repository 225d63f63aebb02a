"""The server as a state machine without I/O: it holds labels, embedding table and w_0.

A peer's bad message raises `PeerError` and changes nothing. A bad *value* raises nothing: a row that is not within the
public bound (`bounds.py`) is stored as zeros and contributes 0. A refusal would depend on a record, and so release
something about it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from dpzv.data.schedule import BatchSchedule
from dpzv.errors import PeerError
from dpzv.methods.rules import Question, ServerRule
from dpzv.protocol.bounds import bounded, within, zeroed
from dpzv.protocol.messages import Embeddings, Evaluation, Fill, Pending, Release
from dpzv.protocol.table import Table, gather

__all__ = ["Delays", "Schedules", "Server"]


@dataclass(slots=True)
class Delays:
    """How old the table's entries were when rounds used them.

    `totals` and `counts` are the sum of their tau and their number, by the device whose entries they are; `most` is the
    largest tau. Only one round in M + 1 is measured, so that devices that take turns are all measured equally often.
    """

    totals: list[int]
    counts: list[int]
    most: int = 0

    @property
    def mean(self) -> float:
        """The mean of tau over all stale entries used so far."""
        return sum(self.totals) / max(1, sum(self.counts))

    def mean_of(self, m: int) -> float:
        """The mean of tau over the entries of device m."""
        return self.totals[m - 1] / max(1, self.counts[m - 1])


class _Asked(Struct, frozen=True):
    """A round between its question and its release."""

    pending: Pending
    ids: NDArray[np.int64]
    rows: torch.Tensor
    y: torch.Tensor


Schedules = tuple[BatchSchedule, ...]
"""The public batches of every device."""


class Server:
    """`fill`, then per round `ask` and, once the gate released it, `accept`. Rounds t count from 1."""

    def __init__(
        self, method: ServerRule, table: Table, y_train: torch.Tensor, schedules: Schedules, lams: tuple[float, ...]
    ) -> None:
        self.method, self.table, self.y_train = method, table, y_train
        self.t = 0
        self.positions = [0] * len(schedules)
        self.times = [0] * len(schedules)  # t_m: the round of the last release device m was sent
        self.delays = Delays([0] * len(schedules), [0] * len(schedules))
        self.zeroed = [0] * len(schedules)  # rows of train records beyond the bound, by device, so far
        self.clipped = [0] * len(schedules)  # records above the clip, by device, over all rounds so far
        self.schedules, self._lams, self._arrays = schedules, lams, method.arrays
        self._checked: dict[int, Embeddings] = {}  # by device: the next batch, once it is known to be well formed
        self._asked: _Asked | None = None

    def fill(self, message: Fill) -> None:
        """Store a chunk of the first fill of the table."""
        D, width = len(self.y_train), self._width(message.m)
        end = message.start + len(message.h)
        if message.start < 0 or end > D or message.h.shape[1] != width or self.t > 0:
            raise PeerError(
                f"device {message.m} may fill rows 0..{D} of width {width} before round 1, got rows "
                f"{message.start}..{end} of width {message.h.shape[1]} in round {self.t}; the link is closed."
            )
        kept = within(message.h)
        self.zeroed[message.m - 1] += len(kept) - int(np.count_nonzero(kept))
        self.table.put(message.m, slice(message.start, end), zeroed(message.h, kept), 0)

    def ask(self, message: Embeddings, contributes: NDArray[np.bool_] | None) -> Pending:
        """Compute what round t+1 would release for a batch of device m, before its noise; nothing moves yet.

        `contributes` [B] is false for records past their cap; `None` means all of them contribute.
        """
        if self._checked.get(message.m) is not message:
            self.check(message)
        if self._asked is not None:
            raise PeerError(
                f"expected the release of round {self._asked.pending.t}, got a batch of device {message.m}; accept the "
                "release first."
            )
        m, t = message.m, self.t + 1
        ids = self.schedules[m - 1].ids(message.position)
        (arrays, kept), beyond = bounded(message.h), 0
        if kept is not None:
            beyond = len(kept) - int(np.count_nonzero(kept))
            contributes = kept if contributes is None else kept & contributes
        (rows, columns), y, lam = self.table.rows(m, ids), gather(self.y_train, ids), self._lams[m - 1]
        answer = self.method.answer(Question(t, m, message.position, rows, columns, arrays, y, lam, contributes))
        pending = Pending(t, m, message.position, len(ids), answer.totals, answer.grid, answer.divisor)
        self._asked, self.zeroed[m - 1] = _Asked(pending, ids, rows, y), self.zeroed[m - 1] + beyond
        self.clipped[m - 1] += answer.clipped
        return pending

    def accept(self, release: Release, head_steps: int = 0) -> None:
        """Keep the batch's rows, move w_0 and close the round; `head_steps` were admitted by the gate."""
        asked, m = self._asked, release.m
        if asked is None or (release.t, m) != (asked.pending.t, asked.pending.m):
            raise PeerError(
                f"expected the release of the round that was asked for last, got that of round {release.t} for device "
                f"{m}; ask for that round first."
            )
        self.table.keep(m, asked.ids, asked.rows)
        self.passed(m, release.t, asked.ids)
        self.method.head_rule.move(release.t, release.Delta, asked.rows, asked.y, head_steps)
        self._asked = None
        del self._checked[m]

    def passed(self, m: int, t: int, ids: NDArray[np.int64]) -> None:
        """Note the end of round t, over the records `ids` by device m: delays of entries, and the device's position."""
        self.table.times[m - 1][ids] = self.times[m - 1]
        M = len(self.positions)
        if M > 1 and t % (M + 1) == 0:  # the asking device's entries were just replaced by fresh ones
            totals, most = self.table.delays(ids, self.times)
            for i, total in enumerate(totals):
                self.delays.totals[i] += total
                self.delays.counts[i] += len(ids) if i + 1 != m else 0
            self.delays.most = max(self.delays.most, most)
        self.t = t
        self.positions[m - 1] += 1
        self.times[m - 1] = t

    def train_head(self, steps: int) -> None:
        """Take private head steps outside a round: in a run without rounds, on the first fill of the table."""
        self.method.head_rule.move(0, np.zeros(1), self.table.h[0:0], self.y_train[:0], steps)

    def evaluation_rows(self, messages: list[Evaluation], D_test: int) -> torch.Tensor:
        """Uploaded test embeddings of all devices as rows [D_test, k_1+...+k_M] for a head."""
        rows = torch.zeros(D_test, self.table.h.shape[1], device=self.y_train.device)
        for message in messages:
            self.check_evaluation(message, D_test)
            h = torch.tensor(zeroed(message.h, within(message.h)), device=rows.device)
            rows[message.start : message.start + len(h), self.table.columns[message.m - 1]] = h
        return rows

    def check_evaluation(self, message: Evaluation, D_test: int) -> None:
        """Refuse test embeddings of another width, or of records that do not exist."""
        width, end = self._width(message.m), message.start + len(message.h)
        if message.start < 0 or end > D_test or message.h.shape[1] != width:
            raise PeerError(
                f"device {message.m} may send test rows 0..{D_test} of width {width}, got rows {message.start}..{end} "
                f"of width {message.h.shape[1]}; the link is closed."
            )

    def _width(self, m: int) -> int:
        """How many numbers an embedding of device m has; refuses a device that does not exist."""
        if not 1 <= m <= len(self.positions):
            raise PeerError(f"devices are numbered 1 to {len(self.positions)}, got {m}; the link is closed.")
        return self.table.widths[m - 1]

    def check(self, message: Embeddings) -> None:
        """Refuse a message that is not the next batch of its device, or has other arrays than the method sends.

        `ask` does so too, unless the same message was checked before, as when it arrived over a network.
        """
        width, expected = self._width(message.m), self.positions[message.m - 1]
        if message.position != expected:
            raise PeerError(
                f"device {message.m} must send batch {expected} of its schedule, got {message.position}; "
                "the link is closed."
            )
        shape = (self.schedules[message.m - 1].B, width)
        shapes = list(map(np.shape, message.h))
        if shapes != [shape] * self._arrays:
            raise PeerError(
                f"device {message.m} must send {self._arrays} embeddings of {shape[0]} records of width "
                f"{shape[1]}, got shapes {shapes}; the link is closed."
            )
        self._checked[message.m] = message
