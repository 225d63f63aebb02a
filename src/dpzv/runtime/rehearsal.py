"""Reads the parties' own files in one process, to show what a run on their records would be.

The files, encodings, checks and the search for shared records are those of a real run (`party_file`, `party_records`,
`alignment`). Keys, addresses and folders of the parties are not touched. Ids are hashed under a key that is no secret,
since the hashes stay in this process. So other records are held out for the test than in the real run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from dpzv.config import Config, Tree, merge
from dpzv.data import party_records as records
from dpzv.data.alignment import KEY_BYTES, Alignment, aligned, keyed
from dpzv.data.dataset import Dataset, Records, fingerprint_of, from_arrays
from dpzv.data.rows import sha256_of
from dpzv.data.schedule import holdout
from dpzv.errors import ConfigError
from dpzv.models.final_head import load_head
from dpzv.runtime.agreement import changed
from dpzv.runtime.device_networks import load_weights, make_networks, mixed_columns
from dpzv.runtime.party_file import PartyFile, agreed_run, check_party, read_party, read_toml
from dpzv.runtime.run_plan import fewest_of, noise_of, plan_of

__all__ = ["Rehearsed", "predicted", "rehearsed", "rehearsed_tree"]

KEY = bytes(KEY_BYTES)


@dataclass(frozen=True, slots=True)
class _Cast:
    """An agreed run with its parties' files, in the order of network.devices, and where each file lies."""

    config: Config
    server: tuple[Path, PartyFile]
    devices: tuple[tuple[Path, PartyFile], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsed:
    """The records that all parties share: as a data set, how they were found, and the ids of those tested on.

    odd: sentences about each party's own values, by its name: what is clipped, missing, constant or not listed.
    """

    data: Dataset
    found: Alignment
    test_ids: list[str]
    labels: records.LabelSettings
    odd: dict[str, list[str]]


def rehearsed_tree(files: Sequence[str]) -> Tree:
    """The agreed run of the first of `files` as a configuration for one process that has the parties' files.

    Its test records are those of the agreed holdout, so `data.holdout` is 0 here: what it is set to holds out some of
    the training records instead, as for every data set.
    """
    paths = [Path(name) for name in files]
    cast = _cast(paths)
    place, server = cast.server
    return merge(
        read_toml(paths[0]),
        {
            "recipe": files[0],
            "data": {"name": _name(cast), "parties": [str(path.resolve()) for path in paths], "holdout": 0.0},
            "privacy": {"parents": [str((place.parent / parent).resolve()) for parent in server.parents]},
            "runtime": {"kind": "simulate"},
        },
    )


def rehearsed(config: Config) -> Rehearsed:
    """The records that the parties share whose files a configuration names, if they are the files it was made from."""
    files = config.data.parties
    cast = _cast([Path(file) for file in files])
    if config.data.name != _name(cast):
        raise ConfigError(
            f"the parties' files were other ones when this run began: {', '.join(files)} and the records they name; "
            "put them back as they were, or begin a new run."
        )
    asked = _data(cast.server).of_server()
    labels = records.read_labels(asked)
    tables = [records.read_features(_data(device).of_device()) for device in cast.devices]
    hashes = [keyed(ids, KEY) for ids in (labels.ids, *(table.ids for table in tables))]
    found = aligned(hashes[0], hashes[1:], fewest_of(config, cast.config.data.holdout))
    train, test = holdout(found.n, cast.config.data.holdout)
    own, *theirs = found.rows
    y = labels.y[own]
    xs = [table.x[rows] for table, rows in zip(tables, theirs, strict=True)]
    data = from_arrays(
        Records([x[train] for x in xs], y[train]),
        Records([x[test] for x in xs], y[test]),
        task=asked.task,
        n_classes=len(asked.classes or ()),
        name=Path(asked.file).stem,
        devices=cast.config.network.devices,
        fingerprint=fingerprint_of([np.ascontiguousarray(hashes[0][own][train]), y[train]]),
    )
    odd = {"the server": [labels.separated, labels.warning()]}
    for m, (name, table) in enumerate(zip(data.devices, tables, strict=True), 1):
        odd[name] = [table.separated, *(note for tally in table.tallies for note in tally.notes())]
        odd[name].append(mixed_columns(config, m, len(tables), table.x.shape[1]))
    told = {name: [sentence for sentence in sentences if sentence] for name, sentences in odd.items()}
    return Rehearsed(replace(data, unit=asked.unit), found, [labels.ids[row] for row in own[test]], asked, told)


@torch.no_grad()
def predicted(config: Config, data: Dataset, folder: Path) -> torch.Tensor:
    """The final head's outputs [D_test, outputs] for the test records, from the weights of the finished run."""
    plan = plan_of(config, len(data.y_train), len(data.x_train))
    rows = []
    for m, network in enumerate(make_networks(config, data, plan, noise_of(config)), 1):
        load_weights(network, folder / "weights" / f"device-{m}.safetensors", m)
        rows.append(network.eval()(torch.from_numpy(data.x_test[m - 1])))
    output: torch.Tensor = load_head(folder / "weights")(torch.cat(rows, dim=1))
    return output


def _cast(paths: Sequence[Path]) -> _Cast:
    """The agreed run of the first file with the parties of the others; refuses what a real run would refuse."""
    if len(paths) < 3:
        raise ConfigError(
            "expected the file of the agreed run, then those of the server and of every device, got "
            f"{', '.join(map(str, paths)) or 'none'}; give all of them, e.g. run.toml server.toml bank.toml."
        )
    if "run" in read_toml(paths[0]):
        raise ConfigError(f"the first file must be the agreed run, got the file of a party, {paths[0]}; name it later.")
    config = agreed_run(paths[0])
    parties = [(path, read_party(path)) for path in paths[1:]]
    for path, file in parties:
        own = agreed_run(path.parent / file.run)
        check_party(own, file, path)
        if changes := changed(config, own):
            raise ConfigError(
                f"all parties must have the agreed run {paths[0]} with {changes} in {path.parent / file.run}, which "
                f"{path} names; give all parties the same file."
            )
    servers = [(path, file) for path, file in parties if file.listen]
    named = {file.name: (path, file) for path, file in parties if file.server}
    wanted = config.network.devices
    if len(servers) != 1 or len(parties) != 1 + len(wanted) or set(named) != set(wanted):
        got = ", ".join(f"{path} ({'the server' if file.listen else file.name})" for path, file in parties)
        raise ConfigError(
            f"expected the files of one server and of each of the devices {', '.join(wanted)}, got {got}; give every "
            "party's file once."
        )
    return _Cast(config, servers[0], tuple(named[name] for name in wanted))


def _data(party: tuple[Path, PartyFile]) -> records.PartyData:
    path, file = party
    return records.parse(file.data, path.parent)


def _name(cast: _Cast) -> str:
    """What the records are called in a configuration: another name as soon as a party's settings or records change.

    Runs are found again by their configuration, so a run on files that changed meanwhile must not pass for the same.
    """
    digest = hashlib.sha256(f"{cast.config.data.holdout}".encode())
    for party in (cast.server, *cast.devices):
        data = _data(party)
        settings = msgspec.to_builtins(data.of_server() if party is cast.server else data.of_device())
        file = settings.pop("file")
        digest.update(repr(settings).encode())
        digest.update(sha256_of(file))
    return f"parties-{digest.hexdigest()[:16]}"
