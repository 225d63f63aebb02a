"""Which runs can be fused, and which of them can advance together."""

from __future__ import annotations

from msgspec.structs import replace

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.errors import ConfigError

__all__ = ["HEADS", "METHODS", "alike", "fused_if_possible", "refuse_kind", "why_not"]

METHODS = ("dpzv", "zoo-vfl", "vafl", "vfl-czofo")
HEADS = ("dp-sgd", "joint-zo", "frozen", "sgd", "zo")
"""The methods and head rules that have a fused round; they are named here so that torch is not needed to ask."""


def why_not(config: Config) -> str:
    """Why a run of `config` cannot be fused, in words that follow "since"; empty if it can."""
    if config.noise.source != "seeded":
        return "its noise is secret, and only simulated noise can be drawn ahead"
    if config.codec.name == "int8":
        return "the codec int8 draws coins for every message"
    if config.train.method not in METHODS:
        return f"method {config.train.method} has no fused round"
    if config.head.rule not in HEADS:
        return f"the head rule {config.head.rule} has no fused step"
    if config.table.path:
        return "its table is mapped into a file"
    if config.head.model == "sum":
        return "a head that only adds keeps sums, which every round changes"
    if config.train.rounds == 0:
        return "it has no rounds"
    return ""


def fused_if_possible(config: Config, *, rounds: bool = True) -> Config:
    """`config`, with rounds one by one if it asks for fused rounds but cannot have them, or has no `rounds` to fuse."""
    if config.runtime.kind != "fused" or (rounds and not why_not(config)):
        return config
    return replace(config, runtime=replace(config.runtime, kind="simulate"))


def refuse_kind(config: Config) -> None:
    """Refuse to simulate a run that asks for parties with processes of their own, or to be fused and cannot be."""
    if config.runtime.kind == "network":
        raise ConfigError(
            'a run in one process is simulated, so runtime.kind must be "simulate" or "fused" here, got "network"; '
            "leave it out, or start every party by itself with `dpzv server` and `dpzv device`."
        )
    if config.runtime.kind == "fused" and (why := why_not(config)):
        raise ConfigError(f'this run cannot be fused, since {why}; set runtime.kind = "simulate".')


def alike(config: Config) -> str:
    """A text that is the same for runs that can advance together: they differ in seeds, budgets, steps and clips only.

    Step sizes, clips, momentum, radii and noise are numbers on tapes; everything else decides shapes or operations.
    """
    train, head, privacy = config.train, config.head, config.privacy
    drawn = "exponential" in str(config.devices.compute)  # the order of devices then depends on the seed
    same = replace(
        config,
        recipe="",
        train=replace(
            train,
            seed=train.seed if drawn else 0,
            eta_m=1.0,
            lam=1.0,
            momentum=float(train.momentum > 0) / 2,
            target=(),
        ),
        head=replace(head, eta_0=1.0, C_0=1.0, momentum=0.0, base=None, class_weight="none", refit_steps=1),
        privacy=replace(
            privacy,
            epsilon=1.0,
            C=1.0 if privacy.C < float("inf") else privacy.C,
            C_h=1.0,
            delta_dp=1e-5,
            head_share=0.5,
            start_share=0.0,
            base_share=0.0,
            parents=(),
        ),
        data=replace(config.data, path=""),
        runtime=replace(config.runtime, checkpoint_seconds=30.0, threads=0),
    )
    return configuration.render(same)
