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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import dpzv

SIMULATED, ARRIVED = "Simulation.round", "Rounds.arrived"
"""The function that is a round of a simulation, and the one that a batch enters when it comes over the network."""

DEVICES = 4
"""So many arrivals are one turn of all devices."""

SETTINGS = (
    "train.rounds=120",
    "train.eval_every=1000",
    "noise.source=seeded",
    "runtime.threads=1",
    "head.refit_epochs=1",
)

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
    with tempfile.TemporaryDirectory() as folder, watched(SIMULATED, inside=True) as rounds:
        start(configuration.parse(tree), Path(folder) / "run", lambda snapshot: True, float("inf"))
    return steady(rounds)


def network() -> list[Hop]:
    """A steady turn of the same recipe between a server and four devices, each over a TLS link of its own."""
    from tests.network.federation import Parties, config_of

    with tempfile.TemporaryDirectory() as keys, tempfile.TemporaryDirectory() as folder:
        parties = Parties.made(Path(keys))
        with watched(ARRIVED, inside=False) as arrivals:
            asyncio.run(parties.together(config_of(*SETTINGS, "head.steps=60"), Path(folder)))
    # the first and the last arrivals belong to the beginning and the end of the run
    turns = [arrivals[i : i + DEVICES] for i in range(2 * DEVICES, len(arrivals) - 2 * DEVICES)]
    return steady([{hop: None for part in turn for hop in part} for turn in turns])


@contextmanager
def watched(boundary: str, inside: bool) -> Iterator[list[dict[Hop, None]]]:
    """Collects the functions that run, a new entry at every call of `boundary`: all up to the next call, or those that
    it calls itself (`inside`).
    """
    found: list[dict[Hop, None]] = []
    names: dict[Any, Hop | None] = {}
    within: list[FrameType] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "return" and within and within[-1] is frame:
            within.pop()
        if event != "call":
            return
        if code not in names:
            path = Path(code.co_filename)
            names[code] = (path.relative_to(ROOT).as_posix(), code.co_qualname) if path.is_relative_to(ROOT) else None
        hop = names[code]
        if hop is None:
            return
        if hop[1] == boundary:
            found.append({})
            within.append(frame)
        if found and (within or not inside):
            found[-1].setdefault(hop)

    with profiled(profile):
        yield found
    if not found:
        raise LookupError(f"expected calls of {boundary}, saw none; name the function that does its work now.")


@contextmanager
def profiled(profile: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Sets the profile function of this thread and of all that it starts."""
    before, before_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(before_threads)


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
