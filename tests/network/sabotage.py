"""What a party of the fault tests does to itself, in its own process only: it dies or misspeaks at a chosen moment."""

from __future__ import annotations

import inspect
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

import dpzv.network.device_conversation
import dpzv.runtime.checkpoint
import dpzv.runtime.journal
from dpzv.network.alignment_state import AlignmentState
from dpzv.network.arrivals import Arrivals
from dpzv.network.evaluations import Evaluations
from dpzv.network.grpc_transport import GrpcConnector
from dpzv.network.transport import Peer, Stream
from dpzv.privacy.ledger import Ledger
from dpzv.protocol.device import Device
from dpzv.protocol.messages import Evaluation, Fill, Release
from dpzv.runtime.gate import Gate
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.server_run import ServerRun

PART = 500
"""Rows of a part of a fill or an evaluation, so that there is something between parts."""

WORDS = {"f": "fill", "e": "batch", "v": "test rows", "r": "release"}

MOMENTS: dict[str, tuple[Any, str, Literal["before", "after"]]] = {
    # at the server
    "ids arrive": (AlignmentState, "take", "before"),
    "records are aligned": (ServerRun, "__init__", "before"),
    "a part of the fill arrives": (ServerRun, "fill", "before"),
    "a fill is complete": (ServerRun, "fill_ends", "after"),
    "test rows arrive": (Evaluations, "take", "before"),
    "a batch arrives": (Arrivals, "arrived", "before"),
    "the gate is asked": (Gate, "submit", "before"),
    "noised, not stored": (Gate, "submit", "after"),
    "stored, not sent": (Ledger, "flush", "after"),
    "a checkpoint is due": (dpzv.runtime.checkpoint, "save", "before"),
    "the refit begins": (dpzv.runtime.journal, "refit", "before"),
    "no summary yet": (RunFolder, "summary", "before"),
    "the summary is written": (RunFolder, "summary", "after"),
    # at a device
    "before hello": (dpzv.network.device_conversation, "hello", "before"),
    "a batch is computed": (Device, "upload", "after"),
    "a release is applied": (Device, "receive", "after"),
}


class Fault(NamedTuple):
    """`what` happens when `where` is reached for the `nth` time.

    where: one of `MOMENTS`; "heard WORD" or "sent WORD" for a frame of that kind at either side; "half-written FILE".
    twice, swap, replay: a device sends the frame two times, after the one that follows, or an old one in its place.
    """

    where: str
    nth: int = 1
    what: Literal["kill", "twice", "swap", "replay"] = "kill"


class Misspeaking:
    """A device's stream; `fault` happens in it, if it is one of frames."""

    def __init__(self, stream: Stream, fault: Fault | None, count: Callable[[str], bool], fired: Path) -> None:
        self._stream, self._fault, self._count, self._fired = stream, fault, count, fired
        self._held: bytes | None = None
        self._first: bytes | None = None

    async def read(self) -> bytes | None:
        frame = await self._stream.read()
        if frame is not None and self._count(f"heard {word(frame)}"):
            die()
        return frame

    async def write(self, frame: bytes) -> None:
        now = self._count(f"sent {word(frame)}")
        if self._held is not None:
            held, self._held = self._held, None
            await self._stream.write(frame)
            await self._stream.write(held)
            return
        if self._fault is not None and self._fault.where == f"sent {word(frame)}" and self._first is None:
            self._first = frame
        if now and self._fault is not None and self._fault.what != "kill":
            self._fired.write_text(self._fault.what)
            if self._fault.what == "swap":
                self._held = frame
                return
            if self._fault.what == "replay":
                frame = self._first or frame
            else:
                await self._stream.write(frame)
        await self._stream.write(frame)
        if now and self._fault is not None and self._fault.what == "kill":
            die()

    async def close(self) -> None:
        await self._stream.close()


def word(frame: bytes) -> str:
    """What kind of frame this is."""
    body = msgspec.msgpack.decode(frame[17:] if frame[:1] == b"r" else frame[1:])
    kind = str(body[0])
    return f"{kind} {body[1]}" if kind in ("ask", "done") else WORDS.get(kind, kind)


def die() -> None:
    """As if the machine lost power."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(fault: Fault | None, folder: Path) -> None:
    """Let `fault` happen in this process, and note what is heard in `folder`."""
    seen = 0

    def count(where: str) -> bool:
        nonlocal seen
        if fault is None or where != fault.where:
            return False
        seen += 1
        return seen == fault.nth

    _in_parts()
    _note_releases(folder / "heard.txt")
    plain = GrpcConnector.connect

    @asynccontextmanager
    async def connect(self: GrpcConnector) -> AsyncIterator[Any]:
        async with plain(self) as stream:
            yield Misspeaking(stream, fault, count, folder / "fired.txt")

    GrpcConnector.connect = connect  # type: ignore[method-assign]
    if fault is not None and fault.where in MOMENTS:
        owner, name, when = MOMENTS[fault.where]
        setattr(owner, name, _watched(getattr(owner, name), when, lambda: count(fault.where)))
    if fault is not None and fault.where.startswith("half-written "):
        _die_before_replacing(fault.where.removeprefix("half-written "), lambda: count(fault.where))
    if fault is not None and fault.where.startswith("sent "):
        _die_after_sending(count)


def limit_files(size: int) -> None:
    """No file of this process may grow beyond `size` bytes: what is written past it fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _watched(original: Callable[..., Any], when: str, now: Callable[[], bool]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        async def waited(*args: Any, **names: Any) -> Any:
            if when == "before" and now():
                die()
            result = await original(*args, **names)
            if when == "after" and now():
                die()
            return result

        return waited

    def called(*args: Any, **names: Any) -> Any:
        if when == "before" and now():
            die()
        result = original(*args, **names)
        if when == "after" and now():
            die()
        return result

    return called


def _in_parts() -> None:
    """Fills and test rows in many small parts, whatever the product's own size of them."""
    fill, evaluate = Device.fill, Device.evaluate

    def small_fill(self: Device, *since: int) -> Iterator[Fill]:
        for part in fill(self, *since):
            for i in range(0, len(part.h), PART):
                yield Fill(part.m, part.start + i, part.h[i : i + PART])

    def small_evaluate(self: Device, *chunk: int) -> Iterator[Evaluation]:
        for part in evaluate(self, *chunk):
            for i in range(0, len(part.h), PART):
                yield Evaluation(part.m, part.start + i, part.h[i : i + PART])

    Device.fill, Device.evaluate = small_fill, small_evaluate  # type: ignore[method-assign]


def _note_releases(path: Path) -> None:
    """Every release that reaches this device, applied or not."""
    receive = Device.receive

    def noted(self: Device, release: Release) -> None:
        with path.open("a") as file:
            file.write(f"{release.t} {release.m} {release.position} {release.Delta.astype('<f8').tobytes().hex()}\n")
        receive(self, release)

    Device.receive = noted  # type: ignore[method-assign]


def _die_before_replacing(name: str, now: Callable[[], bool]) -> None:
    """The new file is written, but the old one is still in its place."""
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        if target.name == name and now():
            die()
        replace(source, target)

    os.replace = watched  # type: ignore[assignment]


def _die_after_sending(count: Callable[[str], bool]) -> None:
    """The server's side of "sent WORD"."""
    send = Peer.send

    async def watched(self: Peer, frame: bytes) -> None:
        await send(self, frame)
        if count(f"sent {word(frame)}"):
            die()

    Peer.send = watched  # type: ignore[method-assign]
