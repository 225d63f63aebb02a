"""Small whole runs of a configuration, over made-up records, that crash in the middle and are resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec

from dpzv import config as configuration
from dpzv.attacks.target import Target, short
from dpzv.config import Config
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.privacy.noise import NoiseSource
from dpzv.privacy.plan import PrivacyPlan
from dpzv.rng import numpy_generator
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.device_view import ask_for_views
from dpzv.runtime.journal import Snapshot
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation

__all__ = ["BATCH", "CANARY", "crashing_run", "made_up", "small"]

BATCH, BATCHES, COLUMNS, CANARY = 8, 2, 4, 0
"""Records a batch, batches, columns a device, and the record whose label differs between the worlds."""

LARGE = 4.0
"""The canary's features; those of others are below 1."""


class _Crash(Exception):
    """Ends a run in the middle, as the death of its process would."""


def small(config: Config) -> Config:
    """`config` cut down to one pass of each device over a few records, with linear devices."""
    change, cut = msgspec.structs.replace, short(config, B=BATCH, rounds=0, head_batch=BATCH * BATCHES)
    start = config.devices.start if config.devices.model == "linear" else "random"
    return change(
        cut,
        devices=change(cut.devices, model="linear", start=start, last_layers=0),
        train=change(cut.train, rounds=None, passes=1.0, eval_every=1_000_000),
        head=change(cut.head, steps=BATCHES),
        privacy=change(cut.privacy, parents=()),
    )


def made_up(target: Target, world: int) -> Dataset:
    """Records with labels like those of the target's data set.

    The canary has the label of its world, the record after it the second label, all others the first.
    """
    generator = numpy_generator("whole runs")  # a format, as the order of the draws: both fix the features
    x = [generator.random((BATCH * BATCHES, COLUMNS)) for _ in range(target.M)]
    for one in x:
        one[CANARY] = LARGE
    y = [world if i == CANARY else int(i == CANARY + 1) for i in range(BATCH * BATCHES)]
    test = Records([one[:2] for one in x], [0, 1])
    return from_arrays(Records(x, y), test, task=target.task, n_classes=target.n_classes)


def crashing_run(target: Target, world: int, noise: NoiseSource, folder: Path) -> PrivacyPlan:
    """Run a world in a new folder with views; it dies after half of its rounds and goes on from its checkpoint."""
    config, data = small(target.config), made_up(target, world)
    networks = partial(make_networks, config, data)

    def dies(snapshot: Snapshot) -> bool:
        if snapshot.stage == "rounds" and 2 * snapshot.t >= snapshot.T:
            raise _Crash
        return True

    simulation = Simulation(config, data, networks, noise=noise)
    opened = RunFolder.create(folder, configuration.render(config))
    ask_for_views(folder)
    try:
        with simulation.opened(opened):
            simulation.run(dies)
    except _Crash:
        pass
    again = Simulation(config, data, networks, folder, noise)
    with again.opened(RunFolder.existing(folder)):
        again.run(lambda _: True)
        return again.server_run.plan
