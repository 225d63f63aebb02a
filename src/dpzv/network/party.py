"""A party as its operator starts it: its own file, its records, its links, and its log."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpzv.config import Config
from dpzv.data import party_records as records
from dpzv.data.alignment import keyed, name_of_key
from dpzv.errors import ConfigError, PeerError
from dpzv.network.admission import Admission
from dpzv.network.alignment_state import LabelRecords
from dpzv.network.feature_records import FeatureRecords
from dpzv.network.grpc_transport import GrpcConnector, GrpcListener, peer_option
from dpzv.network.keyfiles import Credentials, own_name, read_alignment_key, read_party_keys
from dpzv.runtime.party_file import PartyFile, agreed_run, check_party, read_party
from dpzv.validate import host_and_port

__all__ = ["Party", "load_party"]


class Party(msgspec.Struct, frozen=True):
    """A party whose file is read and checked; its records are read when they are asked for."""

    file: PartyFile
    config: Config
    credentials: Credentials
    out: Path
    data: records.PartyData

    @property
    def _key(self) -> bytes:
        return read_alignment_key(self.credentials.ca.with_name("alignment.key"))

    def hashed(self, ids: Sequence[str]) -> NDArray[np.uint8]:
        """Record ids as the parties compare them."""
        return keyed(ids, self._key)

    def features(self) -> FeatureRecords:
        """A device's own records."""
        table = records.read_features(self.data.of_device())
        for odd in (table.separated, *(tally.warning() for tally in table.tallies)):
            if odd:  # it counts records, so it is for this party's own log
                logging.getLogger("dpzv.device").warning("%s", odd)
        return self.device_records(table)

    def device_records(self, table: records.PartyTable) -> FeatureRecords:
        """The records of a device's file, as its run knows them."""
        columns = self.data.of_device().columns
        return FeatureRecords(self.hashed(table.ids), table.x, columns, self._key)

    def labels(self) -> LabelRecords:
        """The server's own records."""
        table = records.read_labels(self.data.of_server())
        for odd in (table.separated, table.warning()):
            if odd:
                logging.getLogger("dpzv.server").warning("%s", odd)
        return self.server_records(table)

    def server_records(self, table: records.LabelTable) -> LabelRecords:
        """The records of the server's file, as its run knows them."""
        asked = self.data.of_server()
        n_classes, name = len(asked.classes or ()), Path(asked.file).stem
        key, meaning = name_of_key(self._key, asked.id), {}
        for field in ("label", "task", "classes", "low", "high"):
            meaning[field] = repr(getattr(asked, field))
        hashes = self.hashed(table.ids)
        return LabelRecords(hashes, table.y, asked.task, n_classes, name, key, meaning, asked.unit)

    def check_name(self) -> None:
        """Refuse a certificate that is missing, or another party's."""
        shown, name = own_name(self.credentials), self.file.name
        if shown != name:
            raise ConfigError(
                f"this party's file is for '{name}', but {self.credentials.certificate} is for '{shown}'; correct one."
            )

    def check_links(self) -> None:
        """Refuse keys that do not fit, lists of revoked certificates that cannot be read, and ports that are taken."""
        self.check_name()
        read_party_keys(self.credentials)
        if self.file.server:
            peer_option(self.file.server_name)
            return
        Admission(self.credentials)
        for key, address in (("listen", self.file.listen), ("metrics", self.file.metrics)):
            if address:
                _refuse_taken(key, address)

    def listener(self) -> GrpcListener:
        """Where the server is reached."""
        return GrpcListener(self.file.listen, self.credentials)

    def connector(self, address: str = "") -> GrpcConnector:
        """How a device reaches its server: at `address`, or at that of its file."""
        return GrpcConnector(address or self.file.server, self.credentials, self.file.server_name)


def load_party(path: Path, *, certified: bool = True) -> Party:
    """The party of a TOML file; unless it is to be `certified`, its certificate is not looked at yet."""
    folder = path.parent
    file = read_party(path)
    keys = folder / file.keys
    credentials = Credentials(keys / f"{file.name}.crt", keys / f"{file.name}.key", keys / "ca.crt")
    agreed = agreed_run(folder / file.run)
    check_party(agreed, file, path)
    parents = tuple(str(folder / parent) for parent in file.parents)
    config = msgspec.structs.replace(agreed, privacy=msgspec.structs.replace(agreed.privacy, parents=parents))
    party = Party(file, config, credentials, folder / file.out, records.parse(file.data, folder))
    if certified:
        party.check_name()
    return party


def _refuse_taken(key: str, address: str) -> None:
    """Refuse an address on which this machine cannot listen now."""
    host, port = host_and_port(key, address, 0)
    inner, family = host.strip("[]"), socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        socket.create_server((inner, port), family=family).close()
    except OSError as error:
        raise PeerError(
            f"the server cannot listen on {key} = '{address}' ({error.strerror or error}); choose another address."
        ) from None
