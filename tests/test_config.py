"""The configuration: strict, round-trips through TOML, and its failures are sentences."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from dpzv import recipes
from dpzv.config import Config, TrainSection, keys, merge, parse, per_device, render, set_key
from dpzv.errors import ConfigError

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
        ("train.eta_m=0", "above 0"),
        ("nonsense", "section.key=value"),
        ("devices.embedding=0", "above 0"),
    ],
)
def test_bad_values_are_refused_in_a_sentence(assignment: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse(merge(BASE, set_key(assignment)))
    assert str(caught.value).endswith((".", "?"))
    assert "\n" not in str(caught.value)


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
    with pytest.raises(ConfigError, match="neither"):
        parse({})


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
