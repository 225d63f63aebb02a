"""One steady round, hop by hop: which functions of the package run, in the order in which they are first called.

``python -m tests.rules.trace`` prints both lists, one of a simulation and one over the network with all parties in one
process. A function counts once, by its file and its qualified name; lambdas and comprehensions count too. What is
listed is what runs in more than half of all rounds: no evaluation, no checkpoint, and in the simulation no step of the
head. Over the network the devices work at the same time, so there it is one turn of all devices, with the steps of the
head that fall into it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import dpzv

SIMULATED, ARRIVED = "Simulation.round", "Arrivals.arrived"
"""The function that is a round of a simulation, and the one that a batch enters when it comes over the network."""

DEVICES = 4
"""So many arrivals are one turn of all devices."""

ROUNDS = 120

SETTINGS = (
    f"train.rounds={ROUNDS}",
    "train.eval_every=1000",
    "noise.source=seeded",
    "runtime.threads=1",
    "head.refit_steps=4",
)

LONGER = (f"train.rounds={4 * ROUNDS}", f"head.steps={2 * ROUNDS}")
"""Over the network a checkpoint is written after every twentieth of the rounds, so few turns have one."""

Hop = tuple[str, str]
"""A file of the package and the qualified name of a function in it."""

ROOT = Path(dpzv.__file__).parent


def simulation() -> list[Hop]:
    """A steady round of the recipe `digits` in one process."""
    from dpzv import config as configuration
    from dpzv import recipes
    from dpzv.runtime.run import start

    tree = recipes.tree("digits")
    for assignment in (*SETTINGS, "head.steps=20"):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    watch = Watch(SIMULATED, inside=True)

    def observe(snapshot: object) -> bool:
        """Watch from here on, since the run is prepared, and stop it before it ends."""
        watch.begin()
        return len(watch.rounds) < ROUNDS // 2

    with tempfile.TemporaryDirectory() as folder, watch:
        start(configuration.parse(tree), Path(folder) / "run", observe, float("inf"))
    return steady(watch.rounds)


def network() -> list[Hop]:
    """A steady turn of the same recipe between a server and four devices, each over a TLS link of its own."""
    from tests.network.federation import Parties, config_of

    watch = Watch(ARRIVED, inside=False)
    with tempfile.TemporaryDirectory() as keys, tempfile.TemporaryDirectory() as folder, watch:
        parties = Parties.made(Path(keys))
        watch.begin()
        asyncio.run(parties.together_over_tls(config_of(*SETTINGS, *LONGER), Path(folder)))
    # the first and the last arrivals belong to the beginning and the end of the run
    arrivals = watch.rounds[2 * DEVICES : -2 * DEVICES]
    turns = [arrivals[i : i + DEVICES] for i in range(len(arrivals) - DEVICES + 1)]
    return steady([{hop: None for arrival in turn for hop in arrival} for turn in turns])


class Watch:
    """Sees the functions of the package that run between `begin` and the end of its context.

    Every call of the function `boundary` opens a new entry of `rounds`. With `inside` an entry holds what that call
    calls itself, else all that runs up to the next one.
    """

    def __init__(self, boundary: str, *, inside: bool) -> None:
        self.rounds: list[dict[Hop, None]] = []
        self._boundary, self._inside = boundary, inside
        self._open: list[FrameType] = []  # the calls of the boundary that have not returned
        self._hops: dict[CodeType, Hop | None] = {}

    def begin(self) -> None:
        """See what this thread does from now on, and every thread that it starts."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def __enter__(self) -> Watch:
        self._before = sys.getprofile(), threading.getprofile()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        sys.setprofile(self._before[0])
        threading.setprofile(self._before[1])
        if kind is None and not self.rounds:
            raise LookupError(f"expected calls of {self._boundary}, saw none; name the function that replaced it.")

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and self._open and self._open[-1] is frame:
            self._open.pop()
        hop = self._hop(frame.f_code) if event == "call" else None
        if hop is None:
            return
        if hop[1] == self._boundary:
            self.rounds.append({})
            self._open.append(frame)
        if self.rounds and (self._open or not self._inside):
            self.rounds[-1].setdefault(hop)

    def _hop(self, code: CodeType) -> Hop | None:
        """Where a function stands, or `None` if it is not of the package."""
        if code not in self._hops:
            path = Path(code.co_filename)
            own = path.is_relative_to(ROOT)
            self._hops[code] = (path.relative_to(ROOT).as_posix(), code.co_qualname) if own else None
        return self._hops[code]


def steady(rounds: list[dict[Hop, None]]) -> list[Hop]:
    """The functions that ran in more than half of `rounds`, in the order of the round that is most like all others."""
    often = Counter(hop for one in rounds for hop in one)
    usual = {hop for hop, times in often.items() if 2 * times > len(rounds)}
    typical = min(rounds, key=lambda one: len(usual ^ one.keys()))
    return [hop for hop in typical if hop in usual] + sorted(usual - typical.keys())


if __name__ == "__main__":
    for title, hops in (("simulation", simulation()), ("network", network())):
        print(f"{title}: {len(hops)} functions")
        for file, name in hops:
            print(f"    {file:28} {name}")
