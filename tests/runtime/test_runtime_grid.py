"""Keys of runs, charged compute, and trials drawn from a space."""

from __future__ import annotations

import functools
import re
from importlib import resources
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv import recipes
from dpzv.config import merge, parse, set_key
from dpzv.errors import ConfigError
from dpzv.runtime.compute_cost import charged, work_of
from dpzv.runtime.grid import config_hash, jobs_that_fit, layered
from dpzv.runtime.search import draw, settings_text, space_of, tree_of, with_changes

TREE = {
    "train": {"rounds": 10, "B": 128, "eta_m": 0.01},
    "privacy": {"epsilon": 2, "C": 1.0},
    "data": {"name": "digits"},
}
METHODS = ("dpzv", "vafl", "zoo-vfl", "vfl-czofo")


def changed(*assignments: str) -> str:
    """The hash after some changes."""
    tree = TREE
    for assignment in assignments:
        tree = merge(tree, set_key(assignment))
    return config_hash(parse(tree))


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    turned = {section: dict(reversed(list(TREE[section].items()))) for section in reversed(list(TREE))}
    assert list(turned) != list(TREE)
    assert config_hash(parse(turned)) == config_hash(parse(TREE))


@pytest.mark.parametrize(
    "assignment", ["data.path=/elsewhere", "table.path=/tmp/rows", "runtime.checkpoint_seconds=1", "train.B=128"]
)
def test_the_hash_leaves_out_what_changes_no_result(assignment: str) -> None:
    assert changed(assignment) == changed()


@pytest.mark.parametrize(
    "assignment",
    [
        "train.seed=1",
        "train.B=64",
        "privacy.epsilon=inf",
        "runtime.threads=1",
        "devices.compute=0.02",
        "data.holdout=0.1",
    ],
)
def test_the_hash_sees_what_changes_a_result(assignment: str) -> None:
    assert changed(assignment) != changed()


def test_settings_of_all_recipes_leave_a_head_that_only_adds_its_rule() -> None:
    settings = recipes.settings("", "exact")
    assert settings["all"]["head"]["rule"] == "dp-sgd"
    for method in METHODS:
        made = parse(layered(recipes.tree("breast-cancer-scorecard"), settings, method, []))
        assert (made.head.model, made.head.rule) == ("sum", "frozen")
    # what somebody asks for himself is left as it is, and refused later
    asked = layered(recipes.tree("breast-cancer-scorecard"), settings, "dpzv", [{"head": {"rule": "dp-sgd"}}])
    assert parse(asked).head.rule == "dp-sgd"


def test_layers_come_in_the_order_recipe_all_method_changes() -> None:
    settings = {"all": {"train": {"B": 64, "lam": 0.5}}, "vafl": {"train": {"B": 32, "eta_m": 0.2}}}
    made = layered(TREE, settings, "vafl", [{"train": {"eta_m": 0.3}}])
    assert made["train"] == {"rounds": 10, "B": 32, "lam": 0.5, "eta_m": 0.3}
    assert layered(TREE, settings, "dpzv", [])["train"]["B"] == 64
    assert TREE["train"]["B"] == 128  # what was given stays as it is


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        ("0.01", 0.015),
        ('"exponential 0.02"', "exponential 0.03"),
        ('[0.01, "exponential 0.02"]', (0.015, "exponential 0.03")),
    ],
)
def test_a_factor_charges_every_form_of_compute(compute: str, expected: object) -> None:
    config = parse(merge(TREE, set_key(f"devices.compute={compute}")))
    assert charged(config, 1.5).devices.compute == expected
    assert charged(config, 1.0) == config


def test_a_devices_work_does_not_depend_on_step_sizes_or_budget_but_on_method_and_batch() -> None:
    def work(*assignments: str) -> str:
        tree = TREE
        for assignment in assignments:
            tree = merge(tree, set_key(assignment))
        return config_hash(work_of(parse(tree)))

    same = ["train.eta_m=0.5", "privacy.epsilon=9", "head.rule=sgd", "train.seed=4"]
    assert {work(assignment) for assignment in same} == {work()}
    other = {work(assignment) for assignment in ("train.method=vafl", "train.B=64", "devices.embedding=3")}
    assert len({*other, work()}) == 4


def test_memory_bounds_how_many_run_at_once() -> None:
    assert jobs_that_fit(1 << 60, 0.0, 8) == 1
    assert jobs_that_fit(1, 0.9, 8) == 1
    assert 1 <= jobs_that_fit(1, 0.0, 8) <= 8
    assert jobs_that_fit(1, 0.0, 1) == 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_trials_are_different_members_of_the_space(lengths: list[int], data: st.DataObject) -> None:
    space = {f"train.key{i}": list(range(length)) for i, length in enumerate(lengths)}
    everything = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    trials = data.draw(st.integers(1, len(everything)))
    drawn = draw(space, trials, "dpzv")
    assert len(drawn) == trials
    assert all(setting in everything for setting in drawn)
    assert len({tuple(setting.values()) for setting in drawn}) == trials
    assert draw(space, trials, "dpzv") == drawn
    with pytest.raises(ConfigError, match="fewer than"):
        draw(space, len(everything) + 1, "dpzv")


def test_another_method_draws_other_trials() -> None:
    space = {"train.eta_m": list(range(100))}
    assert draw(space, 10, "dpzv") != draw(space, 10, "vafl")


def test_a_space_takes_keys_quoted_or_not_and_refuses_others() -> None:
    spaces = msgspec.toml.decode(b'[vafl]\n"train.eta_m" = [0.1, 0.2]\nhead.eta_0 = [1.0]\n[dpzv]\n"train.eta" = [1]\n')
    assert space_of(spaces, "vafl") == {"train.eta_m": [0.1, 0.2], "head.eta_0": [1.0]}
    with pytest.raises(ConfigError, match=r"'train.eta_m'"):
        space_of(spaces, "dpzv")
    with pytest.raises(ConfigError, match=r"\[zoo-vfl\]"):
        space_of(spaces, "zoo-vfl")
    with pytest.raises(ConfigError, match="different values"):
        space_of({"dpzv": {"train.eta_m": [1, 1]}}, "dpzv")


def test_settings_are_written_as_they_are_read(tmp_path: Path) -> None:
    settings = {"all": {"privacy": {"delta_dp": 1e-3}}, "vafl": tree_of({"train.eta_m": [0.1, 0.2], "train.B": 64})}
    file = tmp_path / "best.toml"
    file.write_text(settings_text("A title.", settings, {"vafl.train.B": "the best"}))
    assert recipes.settings("digits", "paper", file) == settings
    assert "B = 64  # the best" in file.read_text()
    assert "delta_dp = 0.001  # not searched" in file.read_text()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("accounting", ["paper", "exact"])
@pytest.mark.parametrize(
    "sets", [["train.rounds=7"], ["train.passes=2", "train.B=64"], ["head.rule=frozen", "privacy.C=3", "privacy.C=4"]]
)
def test_settings_with_changes_make_the_runs_of_trials_with_these_changes(
    method: str, accounting: str, sets: list[str]
) -> None:
    """A trial has the settings, then --set, then its own values; what is written makes the same run without --set."""
    settings = recipes.settings("digits", accounting)
    settings[method] = merge(settings.get(method, {}), {"train": {"rounds": 9, "B": 32}, "head": {"rule": "joint-zo"}})
    trial, trees = tree_of({"train.eta_m": 0.5, "train.lam": 0.1}), [set_key(text) for text in sets]
    written = with_changes(settings, functools.reduce(merge, trees))
    written[method] = merge(written.get(method, {}), trial)
    assert parse(layered(recipes.tree("digits"), written, method, [])) == parse(
        layered(recipes.tree("digits"), settings, method, [*trees, trial])
    )


SHIPPED = sorted(file.name for file in (resources.files(recipes) / "compare").iterdir())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_line_of_shipped_settings_has_a_reason_and_gives_valid_runs(name: str) -> None:
    text = (resources.files(recipes) / "compare" / name).read_text()
    assert text.startswith("# ")
    for line in text.splitlines():
        assert not line or line.startswith(("#", "[")) or re.search(r"  # \w", line), line
    recipe, _, accounting = name.removesuffix(".toml").rpartition("-")
    settings = recipes.settings(recipe or "digits", accounting)
    for method in METHODS:
        config = parse(layered(recipes.tree(recipe or "digits"), settings, method, [{"train": {"method": method}}]))
        assert config.privacy.accounting == accounting


def test_the_shipped_settings_put_the_rivals_noise_where_it_belongs() -> None:
    for accounting, where in (("paper", "uplink"), ("exact", "downlink")):
        settings = recipes.settings("digits", accounting)
        for method in METHODS[1:]:
            config = parse(layered(recipes.tree("digits"), settings, method, []))
            assert config.noise.where == where
            assert accounting == "paper" or (config.head.rule, config.privacy.protects) == ("dp-sgd", "labels")


@pytest.mark.parametrize(
    ("text", "words"), [("[vaffl.train]\nB = 1", "'vafl'"), ("[vafl]\nB = 1", "sections"), ("vafl", "not valid TOML")]
)
def test_bad_settings_are_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        recipes.settings("digits", "paper", file)
    with pytest.raises(ConfigError, match="does not exist"):
        recipes.settings("digits", "paper", tmp_path / "none.toml")


def test_settings_say_for_which_recipe_they_were_tuned(tmp_path: Path) -> None:
    file = tmp_path / "best.toml"
    file.write_text(settings_text("A title.", {"vafl": {"train": {"B": 64}}}, {}, "digits", {"vafl": 3, "dpzv": 3}))
    assert recipes.trials("digits", "paper", file) == {"vafl": 3, "dpzv": 3}
    assert recipes.trials("folder/digits.toml", "paper", file) == {"vafl": 3, "dpzv": 3}
    assert recipes.settings("digits", "paper", file) == {"vafl": {"train": {"B": 64}}}
    assert recipes.trials("mnist", "paper", file) == {}  # tuned for another recipe
    assert recipes.trials("digits", "paper") == recipes.trials("digits", "exact") == {}
    assert set(recipes.trials("mnist", "paper")) == set(recipes.trials("mnist", "exact")) == set(METHODS)
