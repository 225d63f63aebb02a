"""Drawing trials: for every method the same number of settings, from its own lists of values, none twice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from dpzv.config import Tree, keys, merge
from dpzv.errors import ConfigError
from dpzv.rng import numpy_generator
from dpzv.validate import nearest

__all__ = ["draw", "settings_text", "space_of", "tree_of", "with_changes"]

Space = dict[str, list[Any]]
"""`section.key` and the values it may take."""


def space_of(spaces: Mapping[str, Any], method: str) -> Space:
    """The section of `method` in a space file: ``"train.eta_m" = [0.01, 0.03]``, the key quoted or not."""
    section = spaces.get(method)
    if not isinstance(section, Mapping) or not section:
        raise ConfigError(f"the space has no section for {method}; write [{method}] with lists of values.")
    space: Space = {}
    for name, value in section.items():
        inner = value if isinstance(value, Mapping) else None
        space |= {f"{name}.{key}": values for key, values in inner.items()} if inner is not None else {name: value}
    for key, values in space.items():
        if key not in keys():
            raise ConfigError(f"the key '{key}' of the space of {method} is not known; {nearest(key, keys())}")
        if not isinstance(values, list) or not values or any(values.count(value) > 1 for value in values):
            raise ConfigError(f"{key} of the space of {method} must be a list of different values, got {values!r}.")
    return space


def draw(space: Space, trials: int, method: str, seed: int = 0) -> list[dict[str, Any]]:
    """`trials` different settings, each with one value a key; the same ones for the same seed.

    Trials are kept and found again, so the stream's name and the order of keys in a space are a format.
    """
    lengths = [len(values) for values in space.values()]
    size = math.prod(lengths)
    if size < trials:
        raise ConfigError(
            f"the space of {method} holds {size} settings, fewer than {trials} trials; add values or lower --trials, "
            "since every method gets the same number."
        )
    chosen = numpy_generator(seed, "trials", method).choice(size, trials, replace=False)
    return [_setting(space, int(number)) for number in chosen]


def _setting(space: Space, number: int) -> dict[str, Any]:
    """Setting `number` of a space: the number's digits, with one base for each key, choose the values."""
    setting = {}
    for key, values in space.items():
        number, place = divmod(number, len(values))
        setting[key] = values[place]
    return setting


def tree_of(setting: Mapping[str, Any]) -> Tree:
    """``{"train.eta_m": 0.01}`` as sections."""
    tree: Tree = {}
    for key, value in setting.items():
        section, _, field = key.partition(".")
        tree.setdefault(section, {})[field] = value
    return tree


def with_changes(settings: Mapping[str, Any], changes: Tree) -> dict[str, Any]:
    """`settings` in which all methods have these `changes`, and none has another value for their keys."""
    own: dict[str, Any] = {}
    for name, sections in settings.items():
        kept = {section: _without(values, changes.get(section, {})) for section, values in sections.items()}
        own[name] = {section: values for section, values in kept.items() if values}
    own["all"] = merge(own.get("all", {}), changes)
    return own


def _without(values: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without the changed keys; a change of `rounds` or `passes` removes both, as both set the length."""
    lengths = {"rounds", "passes"}
    gone = {*changed, *(lengths if lengths & changed.keys() else ())}
    return {key: value for key, value in values.items() if key not in gone}


def settings_text(
    title: str,
    settings: Mapping[str, Any],
    reasons: Mapping[str, str],
    recipe: str = "",
    trials: Mapping[str, int] = {},
) -> str:
    """A settings file: `settings` with a reason on every line, by ``method.section.key``.

    Settings that were tuned say for which `recipe`, and by how many `trials` of each method.
    """
    lines = [f"# {title}"]
    if trials:
        lines += ["", "[tuned]", f'recipe = "{recipe}"  # the recipe that these settings were tuned for']
        lines += [f"{method} = {number}  # trials on held-out training records" for method, number in trials.items()]
    for name, sections in settings.items():
        for section, values in sections.items():
            lines += ["", f"[{name}.{section}]"]
            for key, value in values.items():
                text = msgspec.toml.encode({key: value}).decode().replace("\n", " ").strip()
                lines.append(f"{text}  # {reasons.get(f'{name}.{section}.{key}', 'not searched')}")
    return "\n".join(lines) + "\n"
