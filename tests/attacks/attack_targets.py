"""The target that the tests attack, and how a fault is planted in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from dpzv import config as configuration
from dpzv.attacks.audit import STRATEGIES, Strategy
from dpzv.attacks.target import Machine, Target
from dpzv.privacy.noise import ExactNoise, NoiseSource

SEED = 7


def target(
    noise: NoiseSource | None = None,
    *,
    epsilon: float = 1.0,
    q: float = 0.1,
    K: int = 1,
    codec: str = "float32",
    C: float = 1.0,
    **head: Any,
) -> Target:
    """One device with embeddings of four numbers and a binary label; the head is frozen unless `head` says else."""
    tree = {
        "train": {"rounds": 100, "seed": SEED, "directions": K},
        "devices": {"embedding": 4},
        "head": {"rule": "frozen", **head},
        "privacy": {"epsilon": epsilon, "C": C},
        "codec": {"name": codec},
    }
    return Target(configuration.parse(tree), noise or ExactNoise(), "binary", 2, 1, q)


def strategy(name: str) -> Strategy:
    """A strategy by its name."""
    return next(found for found in STRATEGIES if found.name == name)


@dataclass(frozen=True)
class Planted(Target):
    """A target in whose machines `plant` exchanges one part for a faulty one."""

    plant: Callable[[Machine], None]

    @contextmanager
    def machine(self, *, B: int, batches: int, rounds: int) -> Iterator[Machine]:
        """The real machine, with the fault."""
        with super().machine(B=B, batches=batches, rounds=rounds) as machine:
            self.plant(machine)
            yield machine


def planted(correct: Target, plant: Callable[[Machine], None]) -> Planted:
    """`correct` with a fault."""
    return Planted(**{field.name: getattr(correct, field.name) for field in fields(correct)}, plant=plant)
