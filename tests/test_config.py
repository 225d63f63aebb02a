"""The configuration: strict, round-trips through TOML, and its failures are sentences."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from dpzv import recipes
from dpzv.config import Config, TrainSection, keys, merge, parse, per_device, render, set_key
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.models import MODELS
from dpzv.runtime.run_plan import plan_of, sizes_of
from dpzv.validate import host_and_port

BASE = {"train": {"rounds": 10}}


@pytest.mark.parametrize("name", recipes.names())
def test_recipes_parse_and_round_trip(name: str) -> None:
    config = parse(recipes.tree(name))
    assert parse(msgspec.toml.decode(render(config).encode())) == config
    assert config.recipe == name
    assert recipes.title(name).endswith(".")


@pytest.mark.parametrize("name", recipes.names())
def test_every_line_of_a_recipe_has_a_reason(name: str) -> None:
    for line in recipes.read(name).splitlines():
        key = line.partition("=")[0].strip()
        if "=" in line and not line.startswith("#") and key not in COLUMN_FIELDS:
            assert "#" in line, line


COLUMN_FIELDS = {"device", "name", "kind", "low", "high", "knots", "values", "other", "missing", "source"}


def test_the_keys_scripts_rely_on() -> None:
    """The contract's names; a missing one breaks users' scripts."""
    promised = """
    privacy.epsilon privacy.delta_dp privacy.accounting privacy.neighbours privacy.protects privacy.C
    privacy.min_batch privacy.start_share noise.source head.rule head.final head.hidden head.eta_0
    head.momentum train.method train.rounds train.passes train.B train.lam train.eta_m train.momentum
    train.schedule train.seed train.eval_every devices.start devices.embedding devices.model devices.compute
    devices.bandwidth devices.latency codec.name table.start table.path runtime.kind runtime.accelerator
    runtime.threads data.name data.path
    """.split()
    assert set(promised) <= set(keys())


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("train.roundz=3", "'train.rounds'"),
        ("trian.rounds=3", "'train.rounds'"),
        ("train.B=many", "train.B"),
        ("train.B=0", "at least 1"),
        ("train.B=1.5", "train.B"),
        ("privacy.epsilon=0", "above 0"),
        ("privacy.epsilon=-1", "above 0"),
        ("privacy.epsilon=nan", "above 0"),
        ("privacy.delta_dp=0", "between 0 and 1"),
        ("privacy.delta_dp=1", "between 0 and 1"),
        ("privacy.C=0", "above 0"),
        ("privacy.C=-3", "above 0"),
        ("privacy.accounting=loose", "exact, paper"),
        ("head.rule=adam", "joint-zo"),
        ("train.momentum=1", r"\[0, 1\)"),
        ("train.lam=inf", "finite"),
        ("train.eta_m=-0.1", "at least 0"),
        ("train.eta_m=[0.1, inf]", "finite"),
        ("nonsense", "section.key=value"),
        ("devices.embedding=0", "above 0"),
    ],
)
def test_bad_values_are_refused_in_a_sentence(assignment: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(merge(BASE, set_key(assignment)))
    assert str(caught.value).endswith((".", "?"))
    assert "\n" not in str(caught.value)


WORDS = {
    f"{name}.{key}": get_args(hint)
    for name, section in get_type_hints(Config).items()
    if section is not str
    for key, hint in get_type_hints(section).items()
    if any(isinstance(word, str) for word in get_args(hint))
}
"""The keys that take one of a few words, with these words."""


@pytest.mark.parametrize("key", WORDS)
def test_an_unknown_word_is_refused_with_all_words_that_are_known(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(merge(BASE, set_key(f"{key}=wrong")))
    assert str(caught.value) == f"{key}: the value 'wrong' is not known; choose one of: {', '.join(WORDS[key])}."


def test_a_key_that_takes_a_word_or_numbers_says_both() -> None:
    assert len(WORDS) > 10
    with pytest.raises(ConfigError, match=r"head\.base: the value 'x' is not known; .*: count, or give a number\."):
        parse(merge(BASE, set_key("head.base=x")))


def test_a_holdout_is_refused_as_what_it_is() -> None:
    """It is a share of the records, and has nothing to do with a budget."""
    with pytest.raises(ConfigError) as caught:
        parse(merge(BASE, set_key("data.holdout=1.5")))
    assert "data.holdout must lie in [0, 1), got 1.5" in str(caught.value)
    assert "budget" not in str(caught.value)


@pytest.mark.parametrize("address", ["0.0.0.0", "0.0.0.0:", ":7443", "h:99999", "h:-1", "h:7443x", "::1", "a b:1", ""])
def test_an_address_without_a_good_port_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=rf"^listen must be host:port, .*, got '{re.escape(address)}'; write"):
        host_and_port("listen", address, 0)


def test_addresses_are_hosts_with_ports() -> None:
    assert host_and_port("listen", "0.0.0.0:0", 0) == ("0.0.0.0", 0)
    assert host_and_port("server", "airline.example:65535", 1) == ("airline.example", 65535)
    assert host_and_port("server", "[::1]:7443", 1) == ("[::1]", 7443)
    with pytest.raises(ConfigError, match="a port from 1 to 65535"):
        host_and_port("server", "airline.example:0", 1)


def test_values_are_toml_or_bare_words() -> None:
    tree = BASE
    for assignment in ("train.eta_m=[0.1, 0.2]", "privacy.epsilon=inf", "privacy.C=inf", "data.name=mnist"):
        tree = merge(tree, set_key(assignment))
    config = parse(tree)
    assert config.train.eta_m == (0.1, 0.2)
    assert math.isinf(config.privacy.epsilon)
    assert config.data.name == "mnist"


def test_rounds_and_passes_displace_each_other() -> None:
    tree = merge(BASE, set_key("train.passes=2"))
    assert (parse(tree).train.rounds, parse(tree).train.passes) == (None, 2.0)
    assert parse(merge(tree, set_key("train.rounds=0"))).train.rounds == 0
    with pytest.raises(ConfigError, match="both set"):
        parse({"train": {"rounds": 1, "passes": 1.0}})


def test_one_value_or_one_per_device() -> None:
    assert per_device("train.lam", 0.1, 3) == (0.1, 0.1, 0.1)
    assert per_device("train.lam", (0.1, 0.2), 2) == (0.1, 0.2)
    with pytest.raises(ConfigError, match="2 values for 3 devices"):
        per_device("train.lam", (0.1, 0.2), 3)


def test_every_default_is_valid() -> None:
    assert parse(BASE) == Config(train=TrainSection(rounds=10))


def test_a_recipe_may_be_like_another_one_but_for_some_keys(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('like = "breast-cancer"\n[train]\nB = 300\n[head]\nbase = 0.4\n')
    mine, other = parse(recipes.tree(str(file))), parse(recipes.tree("breast-cancer"))
    assert (mine.recipe, mine.train.B, mine.head.base) == (str(file), 300, 0.4)
    assert mine.train.rounds == other.train.rounds
    assert mine.data == other.data
    file.write_text('like = "breast-cance"\n')
    with pytest.raises(ConfigError, match="breast-cancer"):
        recipes.tree(str(file))


def test_a_device_without_a_start_gets_the_first_of_its_model() -> None:
    starts = {model: parse({"devices": {"model": model}}).devices.start for model in MODELS}
    assert starts == {model: "columns" if model == "linear" else "random" for model in MODELS}
    assert parse({"devices": {"model": ["mlp", "linear"]}}).devices.start == ("random", "columns")
    assert parse({"devices": {"model": "linear", "start": "random"}}).devices.start == "random"
    assert parse({}).devices.start == "columns"


def test_without_rounds_and_passes_every_device_makes_ten_passes() -> None:
    assert sizes_of(parse({}), 5120, 3).T == 3 * 100
    assert sizes_of(parse({"train": {"passes": 1}}), 5120, 3).T == 3 * 10
    assert sizes_of(parse({"train": {"rounds": 0}}), 5120, 3).T == 0


def test_a_batch_that_is_not_set_fits_the_records() -> None:
    unset, given = parse(BASE), parse({"train": {"rounds": 10, "B": 300}})
    assert [sizes_of(unset, D, 2).B for D in (100, 512, 5000)] == [100, 512, 512]
    assert sizes_of(given, 200, 2).B == 300
    with pytest.raises(ConfigError, match=r"train.B must be at most the number of records 200, got 300"):
        plan_of(given, 200, 2)
    with pytest.raises(PrivacyRefused, match=r"privacy.min_batch=64 records, got only 63 to train on; lower privacy"):
        plan_of(unset, 63, 2)
    # what is never released needs no batch
    assert plan_of(parse({"train": {"rounds": 0, "B": 300}}), 20, 2).B == 20
    assert "B" not in msgspec.toml.decode(render(unset).encode())["train"]
