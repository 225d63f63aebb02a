"""Flower starts the parties: `flwr run` starts the server, and one message asks each device to take part.

No round goes through Flower. This file is not in `runtime/`, because it imports the parties of this folder.

    ServerApp   the label holder's server, in a process of the SuperLink's machine
    ClientApp   a device, in a process of its SuperNode's machine

Parties know each other by their own certificates; Flower's node keys only say which SuperNodes may ask for work. All
who reach the SuperLink can read what Flower carries or logs, so nothing of it depends on a label or a feature.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dpzv.durable import make_folder, open_log
from dpzv.errors import ConfigError, DpzvError
from dpzv.network.device_party import DeviceParty
from dpzv.network.logs import JsonLines
from dpzv.network.party import Party, load_party
from dpzv.network.serving import serve
from dpzv.network.status import read_status
from dpzv.network.transport import Connector, Stream
from dpzv.network.wire import agreed_hash, shown
from dpzv.runtime.run_folder import RunFolder

__all__ = ["Attempts", "client", "party_of", "serve_run", "server"]

LOG = logging.getLogger("dpzv.flower")
TOLD = logging.getLogger("flwr")
"""Flower's own log, which `flwr run --stream` and `flwr log` show."""

KEY = "dpzv"
TTL = 366 * 86400.0
"""Seconds that a message is valid: longer than any training. Flower's own 12 hours would lose later answers."""
POLL_SECONDS = 3.0
AGAIN_SECONDS = 30.0
"""How long a SuperNode whose device has failed is left alone before it is asked again."""
ANSWER_SECONDS = 30.0
"""How long the server waits for the devices' answers once the run is finished."""
GIVE_UP_SECONDS = 120.0
"""How long a device tries to reach the server before it answers, which frees its SuperNode until it is asked again."""
ATTEMPT_SECONDS = 60.0
"""A failed attempt and the pause after it take less. If more time has passed, the last attempt had connected."""

server = ServerApp()
client = ClientApp()


@server.main()
def serve_run(grid: Grid, context: Context) -> None:
    """Hold the labels and train with the devices of all SuperNodes; the same `flwr run` again goes on.

    Why a run failed is in `server.log` in its folder, and only there: the reason may depend on labels.
    """
    own = party_of(context.run_config, "flwr run --run-config 'party=\"...\"'")
    if not own.file.listen:
        raise ConfigError("the run config's `party` is a device's file (it has `server`); give the server's.")
    folder = RunFolder.of_run(own.out, own.config)
    make_folder(own.out)
    os.close(open_log(own.out / "server.log"))  # the handler would make a file that others may read
    _log(logging.FileHandler(own.out / "server.log"))
    words = {"config_hash": agreed_hash(own.config), "address": str(context.run_config.get("address", ""))}
    over = threading.Event()
    inviting = threading.Thread(target=_Invitations(grid, words, own.out).run, args=(over,), daemon=True)
    try:
        summary = asyncio.run(serve(own, folder, lambda _: inviting.start()))
    except Exception:
        LOG.exception("the run ended with an error")
        raise DpzvError("the run ended with an error; server.log in the server's `out` folder says why.") from None
    assert summary is not None  # only Flower stops a run early, and then it ends this process
    over.set()
    if inviting.is_alive():
        inviting.join(2 * ANSWER_SECONDS)
    TOLD.info("%d rounds; the results are in the server's `out` folder.", summary["rounds"])
    for line in summary["statement"].splitlines():
        TOLD.info("%s", line)


@client.train()
def take_part(message: Message, context: Context) -> Message:
    """Be a device until the run is finished; the answer has the device's name, and the kind of error if it failed."""
    _log(logging.StreamHandler())
    name, error = "", ""
    try:
        own = party_of(context.node_config, "flower-supernode --node-config 'party=\"...\"'")
        name = own.file.name
        if not own.file.server:
            raise ConfigError("the node config's `party` is the server's file (it has `listen`); give a device's.")
        words = message.content.config_records[KEY]
        if words["config_hash"] != agreed_hash(own.config):
            raise ConfigError("this device and the server have different run configurations; give both the same file.")
        asyncio.run(_device(own, str(words["address"])))
    except Exception as raised:
        if isinstance(raised, DpzvError):
            LOG.error("%s", raised)
        else:
            LOG.exception("internal error")
        error = type(raised).__name__
    return Message(RecordDict({KEY: ConfigRecord({"name": name, "error": error})}), reply_to=message)


def party_of(settings: Mapping[str, Any], how: str) -> Party:
    """The party whose TOML file the key `party` names; `how` tells the operator where that key is set."""
    path = settings.get("party")
    if not isinstance(path, str) or not path:
        raise ConfigError(f"`party` must be the path of this party's TOML file, got {path!r}; start with {how}.")
    return load_party(Path(path))


class Attempts:
    """A connector that gives up when the server cannot be reached for `GIVE_UP_SECONDS`."""

    def __init__(self, own: Connector) -> None:
        self._own = own
        self._first = self._last = -math.inf

    def connect(self) -> AbstractAsyncContextManager[Stream]:
        """A new stream to the server, or an error after too many attempts."""
        now = time.monotonic()
        if now - self._last > ATTEMPT_SECONDS:
            self._first = now
        self._last = now
        if now - self._first > GIVE_UP_SECONDS:
            raise DpzvError("the server was out of reach for too long; it will ask this device again.")
        return self._own.connect()


async def _device(own: Party, address: str) -> None:
    device = DeviceParty(own.config, own.features(), own.out)
    running = asyncio.ensure_future(device.run(Attempts(own.connector(address))))
    # Flower ends this process by a signal from a thread; the event loop sees it only when it wakes up
    while not running.done():
        await asyncio.wait({running}, timeout=1)
    running.result()


class _Invitations:
    """Asks every SuperNode to take part, and asks again those that have left while a device is missing."""

    def __init__(self, grid: Grid, words: Mapping[str, str], out: Path) -> None:
        self._grid, self._out = grid, out
        self._content = RecordDict({KEY: ConfigRecord(dict(words))})
        self._open: dict[str, tuple[int, str]] = {}  # by unanswered message: the SuperNode, and when it was started
        self._due: dict[int, float] = {}  # when a SuperNode that was asked before may be asked again

    def run(self, over: threading.Event) -> None:
        """Go on until `over`, and then until the last answers have come."""
        last = math.inf
        while time.monotonic() < last and (self._open or not over.is_set()):
            try:
                self._listen()
                if not over.is_set():
                    self._ask()
            except Exception as error:  # the SuperLink may be away; the parties do not need it to go on
                LOG.warning("devices could not be asked by way of the SuperLink (%s); the run goes on", error)
            over.wait(POLL_SECONDS)
            if over.is_set():
                last = min(last, time.monotonic() + ANSWER_SECONDS)
                time.sleep(0.5)

    def _listen(self) -> None:
        for reply in self._grid.pull_messages(list(self._open)) if self._open else ():
            node, _ = self._open.pop(reply.metadata.reply_to_message_id, (None, ""))
            if node is not None:
                self._due[node] = time.monotonic() + AGAIN_SECONDS
                TOLD.info("SuperNode %d: %s", node, _heard(reply))

    def _ask(self) -> None:
        online = {info.node_id: info.last_activated_at for info in self._grid.get_nodes()}
        for message, (node, since) in list(self._open.items()):
            if online.get(node, since) != since:  # the SuperNode was restarted and does not know the message
                del self._open[message]
                self._due[node] = time.monotonic() + AGAIN_SECONDS
        busy = {node for node, _ in self._open.values()}
        nodes = [node for node in online if node not in busy and self._may_ask(node)]
        made = [Message(self._content, node, MessageType.TRAIN, ttl=TTL) for node in nodes]
        for node, message in zip(nodes, self._grid.push_messages(made), strict=True):
            if message:
                self._open[message] = node, online[node]
                TOLD.info("SuperNode %d is asked to take part.", node)

    def _may_ask(self, node: int) -> bool:
        """Whether to ask a SuperNode now: it was never asked, or its pause is over and a device is missing."""
        if node not in self._due:
            return True
        return time.monotonic() > self._due[node] and not all(device.here for device in read_status(self._out).devices)


def _heard(reply: Message) -> str:
    """A device's answer in words."""
    if reply.has_error():
        return f"no answer ({shown(reply.error.reason or '')})"
    said = reply.content.config_records.get(KEY, ConfigRecord())
    name, error = str(said.get("name", "")), str(said.get("error", ""))
    device = f"device {shown(name)}" if name else "a device without a name"
    return f"{device} failed ({shown(error)}); its own log says why." if error else f"{device} has finished."


def _log(handler: logging.Handler) -> None:
    """Send our own lines, and warnings of others, to `handler`; Flower's own lines go where they went before."""
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dpzv").setLevel(logging.INFO)
    TOLD.propagate = False
    logging.captureWarnings(True)
