"""What a run may do, from its configuration: its public sizes, plan, noise and head."""

from __future__ import annotations

import logging
import math
from pathlib import Path

from msgspec import Struct

from dpzv.config import Config, per_device
from dpzv.data.alignment import Fewest
from dpzv.data.dataset import ServerRecords
from dpzv.declarations import head_rule_facts, start_facts
from dpzv.errors import ConfigError
from dpzv.models.head import base_offset
from dpzv.privacy.lineage import parents_of
from dpzv.privacy.noise import ExactNoise, NoiseSource, SeededNoise
from dpzv.privacy.plan import MOST_NUMBERS, ParentRun, PlanRequest, PrivacyPlan, participation_cap
from dpzv.privacy.planning import make_plan
from dpzv.privacy.record_names import RecordNames
from dpzv.rng import seed_of

__all__ = [
    "ServerParts",
    "Sizes",
    "batch_of",
    "check_head",
    "device_plan",
    "fewest_of",
    "named_parents",
    "noise_of",
    "plan_of",
    "sizes_of",
    "warn",
]

LOG = logging.getLogger("dpzv.plan")

BATCH, PASSES = 512, 10
"""Records a batch, where `train.B` is not set; passes of a device over its records, where no length is set."""
RELEASES = "lower privacy.min_batch, or set train.rounds = 0, with which nothing is released"


class Sizes(Struct, frozen=True):
    """The public sizes of a run: D records in batches of B, M devices, T rounds over all of them together."""

    D: int
    M: int
    B: int
    T: int


class ServerParts(Struct, frozen=True, eq=False):
    """What the server's side of a run is made from; a head that does not fit is refused before anything is written.

    `widths` are the numbers in an embedding of each device. `plan` is what the run is asked for now: where its folder
    has a ledger, the plan in it is used.
    """

    config: Config
    records: ServerRecords
    widths: tuple[int, ...]
    plan: PrivacyPlan
    noise: NoiseSource

    def __post_init__(self) -> None:
        check_head(self.config, self.records, self.widths)


def batch_of(config: Config, D: int | None = None) -> int:
    """Records a batch of a run over D records: what is set, or else 512 or all records, if there are fewer.

    Every party knows D, so all of them find the same batch. Without rounds no batch is ever taken, and one that is set
    is cut to D as well.
    """
    B = BATCH if config.train.B is None else config.train.B
    fits = config.train.B is None or config.train.rounds == 0
    return B if D is None or not fits else min(B, D)


def fewest_of(config: Config, share: float) -> Fewest:
    """How many records parties must share, of which a `share` is tested on, so that a batch can be released."""
    if config.train.rounds == 0:
        return Fewest()
    set_, least = config.train.B or 1, config.privacy.min_batch if math.isfinite(config.privacy.epsilon) else 1
    needed = max(set_, least)
    records = max(1, math.floor(needed / (1 - share)) - 2)
    while records - round(share * records) < needed:  # `holdout` rounds in this way
        records += 1
    key, remedy = ("train.B", "lower train.B or leave it out") if set_ >= least else ("privacy.min_batch", RELEASES)
    return Fewest(records, f"{key} = {needed} with data.holdout = {share:g}", remedy)


def sizes_of(config: Config, D: int, M: int) -> Sizes:
    """The sizes of a run over D records and M devices; T comes from `train.rounds` or from `train.passes`."""
    B, rounds, passes = batch_of(config, D), config.train.rounds, config.train.passes
    if rounds is None:
        rounds = M * math.floor((PASSES if passes is None else passes) * D / B)
    return Sizes(D, M, B, rounds)


def plan_of(config: Config, D: int, M: int, parents: tuple[ParentRun, ...] = ()) -> PrivacyPlan:
    """The privacy plan of a run over D records and M devices after earlier runs; refuses what it cannot cover."""
    privacy, sizes = config.privacy, sizes_of(config, D, M)
    T, B = sizes.T, sizes.B
    for key, number in (("train.q", config.train.q), ("train.directions", config.train.directions)):
        if number > MOST_NUMBERS:  # the account of noise on integers counts no more numbers than these
            raise ConfigError(f"{key} must be at most {MOST_NUMBERS}, got {number}; lower {key}.")
    if B > D:
        raise ConfigError(f"train.B must be at most the number of records {D}, got {B}; lower train.B.")
    # without rounds there is no use for the head in the loop, unless it is the one that is kept
    head_steps = config.head.steps if T or config.head.final == "private" else 0
    mechanism = head_rule_facts(config.head.rule).mechanism
    request = PlanRequest(
        epsilon=privacy.epsilon,
        delta_dp=privacy.delta_dp,
        accounting=privacy.accounting,
        neighbours=privacy.neighbours,
        protects=privacy.protects,
        C=privacy.C,
        B=B,
        D=D,
        M=M,
        T=T,
        participations=participation_cap(T=T, B=B, D=D, M=M),
        min_batch=privacy.min_batch,
        head_rule=config.head.rule,
        starts=per_device("devices.start", config.devices.start, M),
        start_share=privacy.start_share,
        head_batch=min(config.head.batch, D),
        head_steps=head_steps,
        head_share=privacy.head_share,
        # where nothing is released, nothing needs a base rate
        base_share=privacy.base_share if config.head.base == "count" and (T or (head_steps and mechanism)) else 0.0,
        parents=parents,
        method=config.train.method,
        where=config.noise.where,
        C_h=privacy.C_h,
        directions=config.train.directions,
    )
    return make_plan(request)


def named_parents(config: Config, names: RecordNames, begun: Path | None) -> tuple[ParentRun, ...]:
    """The earlier runs that a configuration names, for a run on the records `names` that may be `begun` in a folder."""
    return parents_of([Path(folder) for folder in config.privacy.parents], names, begun)


def warn(plan: PrivacyPlan) -> None:
    """Tell whoever runs it what is weak about a plan, while nothing of its budget is spent yet."""
    for warning in plan.warnings:
        LOG.warning("%s", warning)


def device_plan(config: Config, m: int, M: int, D: int) -> PrivacyPlan | None:
    """The plan, as far as device m needs it: it is calibrated only for noise that the device adds itself."""
    start = start_facts(per_device("devices.start", config.devices.start, M)[m - 1])
    return plan_of(config, D, M) if start.private or config.noise.where == "uplink" else None


def check_head(config: Config, records: ServerRecords, widths: tuple[int, ...]) -> None:
    """Refuse a head that adds what cannot be added, and a base rate that does not fit the labels."""
    task, outputs, base = records.task, records.outputs, config.head.base
    if config.head.model == "sum" and head_rule_facts(config.head.rule).moves:
        raise ConfigError(
            f"a head that only adds has no weights that could move, so head.rule must be 'frozen', got "
            f"'{config.head.rule}'; set head.rule to 'frozen'."
        )
    if config.head.model == "sum" and set(widths) != {outputs}:
        raise ConfigError(
            f"a head that only adds needs devices of {outputs} number{'s' if outputs > 1 else ''} a record, as many as "
            f"it has outputs, got {', '.join(map(str, widths))}; set devices.embedding to {outputs}."
        )
    if base == "count" and not config.privacy.base_share:
        raise ConfigError(
            "counting labels needs a share of the budget, got privacy.base_share = 0; raise it, or give a public "
            "number as head.base."
        )
    if base == "count" and task == "regression":
        raise ConfigError(
            'only labels of classes can be counted, got head.base = "count" for a regression; give a public mean and '
            "scale as head.base, in units in which the public range of the labels is -1 to 1."
        )
    if base is not None and base != "count":
        base_offset(base, task, outputs)


def noise_of(config: Config) -> NoiseSource:
    """The noise source of a configuration."""
    if config.noise.source == "exact":
        return ExactNoise()
    # anybody who knows the run's seed, as devices do, can make this noise too; the stream's name is a format
    return SeededNoise(seed_of(config.train.seed, "noise"))
