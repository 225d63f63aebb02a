"""A device of a networked run: it connects, answers its server until the goodbye, and reconnects when a link is lost.

After a crash it comes back with the weights of its checkpoint, and the server sends it the releases it has missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dpzv.config import Config
from dpzv.errors import ConfigError, DataError, PeerError, PeerRefused
from dpzv.network.aside import aside
from dpzv.network.device_conversation import Conversation
from dpzv.network.device_folder import DeviceFolder
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.transport import GOODBYE_SECONDS, Connector, LinkLost, Stream, last_word
from dpzv.network.wire import ListPiece, Stop, Welcome, pack, shown, unpack
from dpzv.runtime.accelerator import accelerator_of

__all__ = ["DeviceParty"]

LOG = logging.getLogger("dpzv.device")
UNHEARD = (
    "; it never answered: check its address, that it runs, and with `dpzv keys show` that both certificates are of one "
    "authority and not expired"
)
LONGEST_PAUSE, STAYING_PAUSE = 5.0, 3.0
"""The longest pauses in seconds between two attempts to connect: in a run, and while waiting to be asked to predict."""
ASIDE_SECONDS = 0.005
"""The answers that a thread makes within this time are sent together; to send each by itself takes a fifth longer."""


class DeviceParty:
    """A device's links to its server, one after the other; what is said on them is its `conversation`."""

    def __init__(self, config: Config, features: FeatureRecords, folder: Path) -> None:
        self._config, self._folder = config, DeviceFolder(folder)
        self.conversation = Conversation(config, features, self._folder)
        self._stopping = asyncio.Event()
        self._writing = asyncio.Lock()
        self._leave: Callable[[], Coroutine[Any, Any, None]] | None = None  # how to end the current link
        self._leaving: asyncio.Task[None] | None = None

    async def run(self, connector: Connector, *, stay: bool = False) -> None:
        """Take part until the server says that the run is finished; connect again when the link is lost.

        With `stay` it goes on after that, for predictions, until it is stopped. A folder that another process uses is
        refused. Raises `PeerRefused` if the server will not have this device as it is.
        """
        accelerator_of(self._config)  # torch's number of threads is set for each thread; here, for the event loop's
        with self._folder.held():
            self.conversation.check()
            await self._keep_connected(connector, stay=stay)

    async def _keep_connected(self, connector: Connector, *, stay: bool) -> None:
        """Connect again and again, until the server says that the run is finished, or until a stop."""
        pause, longest = 0.5, LONGEST_PAUSE
        while not self._stopping.is_set():
            began, position = time.monotonic(), self.conversation.position
            try:
                if await self._connect(connector):
                    if not stay:
                        return
                    longest = STAYING_PAUSE
            except PeerRefused as error:
                LOG.error("%s", error)
                raise
            except LinkLost as error:
                LOG.warning("the link to the server is lost (%s)%s", error, "" if self.conversation.m else UNHEARD)
            except PeerError as error:
                LOG.error("%s", error)
            except (ConfigError, DataError) as error:
                if not self.conversation.run_id:  # nothing has begun, so the operator is told at once
                    raise
                LOG.error("%s", error)  # for example, a certificate is being renewed; try again later
            # after a useful link the pause is short again: perhaps the server was only restarted
            useful = time.monotonic() - began > 60 or self.conversation.position > position
            pause = 0.5 if useful else min(longest, 2 * pause)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause * random.uniform(0.5, 1.0))
            except TimeoutError:
                LOG.info("connecting again")

    def stop(self) -> None:
        """Say goodbye after the current message; weights are kept."""
        self._stopping.set()
        if self._leave is not None and self._leaving is None:
            self._leaving = asyncio.create_task(self._leave())

    async def _connect(self, connector: Connector) -> bool:
        """One link from its beginning to its end; true if the server called it the last one, or after a stop."""
        talking = asyncio.current_task()
        assert talking is not None
        async with connector.connect() as stream:

            async def leave() -> None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        await self._goodbye(stream, "stopped by its operator", final=False)
                        await asyncio.Event().wait()  # the server ends the stream, and `_talk` with it
                talking.cancel()  # the server did not end it in time

            self._leave = leave
            try:
                return await self._talk(stream)
            except (asyncio.CancelledError, LinkLost):
                if self._leaving is None:
                    raise
                talking.uncancel()
                return True
            finally:
                self._leave = None
                if self._leaving is not None:
                    self._leaving.cancel()
                self.conversation.save()

    async def _talk(self, stream: Stream) -> bool:
        """Answer the server until its goodbye; true if the server says not to come back."""
        conversation = self.conversation
        async with self._writing:  # `stop` may write a goodbye at any time
            await stream.write(conversation.hello())
        while True:
            frame = await stream.read()
            if frame is None:
                raise LinkLost("the server ended the stream without a goodbye")
            message = unpack(conversation.codec, frame)
            if isinstance(message, Stop):
                return await self._end(stream, message)
            try:
                if isinstance(message, ListPiece | Welcome):
                    await self._answer_aside(stream, conversation.answers(message))
                    continue
                for answer in conversation.answers(message):
                    async with self._writing:
                        await stream.write(answer)
            except LinkLost:  # the server may have closed this link while the device wrote
                stop = await last_word(stream, 1)
                if stop is None:
                    raise
                return await self._end(stream, stop)

    async def _answer_aside(self, stream: Stream, answers: Iterator[bytes]) -> None:
        """Send answers that may take long to make, such as millions of hidden ids; a thread makes them."""
        while made := await aside(partial(_made, answers)):
            for answer in made:
                async with self._writing:
                    await stream.write(answer)

    async def _end(self, stream: Stream, stop: Stop) -> bool:
        """Answer the server's goodbye; true if the server says not to come back."""
        LOG.log(logging.INFO if stop.final else logging.WARNING, "the server says goodbye: %s", shown(stop.reason))
        if stop.final:
            self.conversation.finish()
        await self._goodbye(stream, "goodbye", final=stop.final)
        if stop.refused:
            raise PeerRefused(f"the server does not accept this device as it is and says: {shown(stop.reason, 1000)}")
        return stop.final

    async def _goodbye(self, stream: Stream, reason: str, *, final: bool) -> None:
        with suppress(LinkLost):  # a server that has said goodbye may be gone
            async with self._writing:
                await stream.write(pack(Stop(reason, final)))
                await stream.close()


def _made(answers: Iterator[bytes]) -> list[bytes]:
    """The next answers, as many as are made in a short time; empty once there are no more."""
    made, until = list[bytes](), time.monotonic() + ASIDE_SECONDS
    for answer in answers:
        made.append(answer)
        if time.monotonic() > until:
            break
    return made
