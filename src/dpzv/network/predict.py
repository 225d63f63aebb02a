"""Predictions by the trained parties: devices send embeddings of the asked records, and the server's head predicts.

What this reveals: the server sees the embeddings, as in training. A device learns which of its records were asked for,
and nothing of what was predicted. Predictions stay with the server; they are not covered by the privacy claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.config import Config, per_device
from dpzv.errors import DataError, PeerError, PeerRefused
from dpzv.models.final_head import load_head
from dpzv.network.alignment_state import AlignmentState, LabelRecords
from dpzv.network.greeting import greet, hashed_ids
from dpzv.network.transport import LinkLost, Listener, Peer, Stream, last_word, next_frame
from dpzv.network.wire import MOST_IDS, PART, ROWS, Ask, Done, Hello, Welcome, unpack
from dpzv.privacy.statement import read_ledger
from dpzv.protocol.bounds import LARGEST, bounded
from dpzv.protocol.messages import Evaluation
from dpzv.runtime.assemble_device import codec_of
from dpzv.runtime.run_folder import RunFolder

__all__ = ["Predictor"]

LOG = logging.getLogger("dpzv.predict")
SECONDS = 60.0
"""How long a device may be silent before the next frame of its answer."""
AT_ONCE = 8192
"""The head is run as soon as this many records are complete."""


class _Unable(PeerError):
    """A device lacks releases or all records, so that nothing can be predicted, whatever the other devices answer."""


class Predictor:
    """Asks every device once for the records of `wanted()` (hashed ids) and runs the final head on what comes.

    A record that a device does not have is left out; `unknown` [n, M] says which device lacks which record. What the
    devices send waits in a file for the slowest of them, so millions of records need little memory.
    """

    unknown: NDArray[np.bool_]

    def __init__(
        self, config: Config, labels: LabelRecords, folder: RunFolder, wanted: Callable[[], NDArray[np.uint8]]
    ) -> None:
        if not folder.finished:
            raise DataError(f"{folder.path} holds no finished run; train it to its end first.")
        self._config, self._names = config, config.network.devices
        self._ids, self._hashed = wanted, asyncio.Event()
        # this raises if the server's records, or what its labels mean, are not those of the run
        psi = config.network.alignment == "psi"
        self._alignment = AlignmentState(folder.path, labels, len(self._names), config.data.holdout, psi=psi)
        self._ledger = read_ledger(folder.path)
        widths = per_device("devices.embedding", config.devices.embedding, len(self._names))
        self._offsets = np.cumsum([0, *widths])
        self._head, self._folder = load_head(folder.path / "weights"), folder
        self._output: torch.Tensor | None = None  # [n, outputs]
        self._finding = asyncio.Lock()  # looking up records takes memory, so it is done for one device at a time
        # up to which record each device has sent all that it has, and up to which the head has seen them
        self._reached, self._done = [0] * len(self._names), 0
        self._left = set(range(1, len(self._names) + 1))
        self._news = asyncio.Event()
        self._failure: PeerError | None = None

    async def run(self, listener: Listener, seconds: float) -> torch.Tensor:
        """The head's outputs for the records that all devices have; refused if one does not answer in `seconds`."""
        await listener.start(self._talk)
        LOG.info("waiting for %s", ", ".join(self._names))
        try:
            hashes = await asyncio.to_thread(self._ids)  # meanwhile the devices connect
            if len(hashes) > MOST_IDS:
                raise DataError(f"a prediction is for at most {MOST_IDS} records, got {len(hashes)}; split it.")
            self._wanted = np.ascontiguousarray(hashes).view(np.uint64)  # [n, 2]
            self._order = await asyncio.to_thread(np.argsort, self._wanted[:, 0])
            self._rows = self._folder.scratch(".prediction", (len(hashes), int(self._offsets[-1])))
            self.unknown = np.zeros((len(hashes), len(self._names)), np.bool_)
            self._hidden = self._alignment.hiding(hashes)
            self._hashed.set()
            async with asyncio.timeout(seconds):
                while self._left:
                    await self._news.wait()
                    self._news.clear()
                    if self._failure is not None:
                        raise self._failure
        except TimeoutError:
            away = ", ".join(self._names[m - 1] for m in sorted(self._left))
            raise PeerError(f"{away} did not answer within {seconds:g} s; start `dpzv device --stay` there.") from None
        finally:
            await listener.stop(1)
        return self._known_to_all()

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which records every device has."""
        return np.asarray(~self.unknown.any(axis=1))

    def _known_to_all(self) -> torch.Tensor:
        """The head's outputs for the records that every device has."""
        self._go_on()
        known = self.known
        if not known.any():
            raise DataError(
                f"at least one of the {len(known)} ids must be in every device's file, but none is; check the ids."
            )
        for name, lacks in zip(self._names, self.unknown.T, strict=True):
            if lacks.any():
                LOG.warning("%s has no record for %d of %d ids", name, int(lacks.sum()), len(lacks))
        assert self._output is not None
        outputs = self._output if known.all() else self._output[torch.from_numpy(known)]
        if not bool(outputs.isfinite().all()):
            raise DataError("the head of this run gives predictions that are not finite, so it diverged; train anew.")
        return outputs

    async def _talk(self, stream: Stream) -> None:
        peer = Peer(0, stream)
        try:
            m, hello = await greet(stream, self._config)
            peer = Peer(m, stream)
            self._check_weights(m, hello)
            self._alignment.check_encoding(m, hello.digests)
            await self._ask(peer, hello.ids)
            self._left.discard(peer.m)
            await peer.close("the server has all embeddings that it asked for", final=True)
        except PeerRefused as error:
            LOG.error("%s", error)
            if peer.m:  # it is a device of this run; a stranger cannot stop a prediction
                self._failure = error
            await peer.close(str(error), refused=True)
        except _Unable as error:
            self._failure = error
            await peer.close("this device cannot take part; the server's operator knows why")
        except PeerError as error:
            LOG.warning("%s", error)
            await peer.close(str(error))
            if stream.peer_name in self._names:  # nothing more is read from strangers
                await last_word(stream)
        except LinkLost as error:
            LOG.warning("device %d is gone (%s)", peer.m, error)
        finally:
            self._news.set()

    def _check_weights(self, m: int, hello: Hello) -> None:
        """Refuse a device whose weights are not those at the end of this run."""
        run_id, releases = self._ledger.run_id, self._ledger.turns.get(m, 0)
        who = f"device {m} ({self._names[m - 1]})"
        if hello.run_id != run_id:
            raise PeerRefused(
                f"{who} must have weights of this run, but has none; give it its folder back, or start `dpzv server` "
                "again and then this device, so that it hears what it has missed."
            )
        if hello.position != releases:
            raise _Unable(
                f"{who} is at batch {hello.position} of {releases} of this run; start `dpzv server` again, so that it "
                "hears what it has missed, or give it its folder back."
            )

    async def _ask(self, peer: Peer, count: int) -> None:
        """Everything one device has to send: its `count` ids, and embeddings of what is found among them."""
        m, stream = peer.m, peer.stream
        await peer.tell(Welcome(m, "", "predict", True))
        ids = await hashed_ids(peer, count)
        await self._hashed.wait()
        if self._hidden is not None:
            ids = await self._hidden.known(peer, ids)
        async with self._finding:
            places, rows = await asyncio.to_thread(self._found, m, ids)
        del ids
        await peer.tell(Ask("predict", len(rows)))
        await peer.send_list(rows)
        codec = codec_of(self._config, m, len(self._names))
        columns = slice(int(self._offsets[m - 1]), int(self._offsets[m]))
        stream.most = max(PART, codec.longest(1, columns.stop - columns.start) + 1)
        self._reached[m - 1] = came = 0
        while True:
            message = unpack(codec, await next_frame(stream, SECONDS))
            if isinstance(message, Done) and came == len(rows):
                return
            if not isinstance(message, Evaluation) or message.h.shape[1] != columns.stop - columns.start:
                raise PeerError(f"device {m} must send embeddings, got {type(message).__name__}; its link is closed.")
            if message.start != came or came + len(message.h) > len(rows):
                raise PeerError(f"device {m} sent embeddings of records that were not asked for; its link is closed.")
            _, kept = bounded((message.h,))
            if kept is not None and (beyond := int(np.count_nonzero(~kept))):
                raise _Unable(
                    f"device {m} ({self._names[m - 1]}) must send finite embeddings of at most {LARGEST:g}, got others "
                    f"for {beyond} of {len(message.h)} records; check its weights and its file."
                )
            self._rows[places[came : came + len(message.h)], columns] = message.h
            came += len(message.h)
            self._reached[m - 1] = int(places[came]) if came < len(rows) else len(self._rows)
            self._go_on()

    @torch.no_grad()
    def _go_on(self) -> None:
        """Run the head on the records that are complete, while the others are on their way."""
        ready, n = min(self._reached), len(self._rows)
        while self._done < ready and (ready == n or ready - self._done >= AT_ONCE):
            end = self._done + AT_ONCE if ready - self._done >= 2 * AT_ONCE else ready  # so that no short rest is left
            some = self._head(torch.from_numpy(self._rows[self._done : end]))
            if self._output is None:
                self._output = some.new_zeros(n, some.shape[1])
            self._output[self._done : end], self._done = some, end

    def _found(self, m: int, hashes: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of the wanted records device m has, and its row of each; raises `_Unable` if it has none of them."""
        words, wanted = np.ascontiguousarray(hashes).view(np.uint64), self._wanted  # [n, 2]
        if not len(words):
            words = ~wanted[:1]  # a stand-in that is not the hash of a wanted record
        order = np.argsort(words[:, 0])  # by the first half of the hash, in which no two ids agree by chance
        at = np.searchsorted(words[order, 0], wanted[self._order, 0])  # sorted queries are four times as fast
        rows = np.empty(len(wanted), ROWS)
        rows[self._order] = order[np.minimum(at, len(order) - 1)]
        lacks = (words[rows] != wanted).any(axis=1)
        if lacks.all():
            raise _Unable(
                f"device {m} ({self._names[m - 1]}) has no record for any of {len(rows)} ids; check the ids, or add "
                "them to its file."
            )
        self.unknown[:, m - 1] = lacks
        places = np.flatnonzero(~lacks)
        return places, rows[places]
