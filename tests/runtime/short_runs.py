"""Short runs of shipped recipes, changed by assignments as on the command line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.runtime.run import start


def changed(recipe: str, *assignments: str) -> Config:
    """The recipe with simulated noise on one thread and short fits of the final head, and with these changes."""
    tree = recipes.tree(recipe)
    for assignment in ("noise.source=seeded", "runtime.threads=1", "head.refit_steps=4", *assignments):
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


def run(config: Config, path: Path) -> dict[str, Any]:
    """The summary of a run from its start to its end."""
    summary = start(config, path, lambda snapshot: True, math.inf)
    assert summary is not None
    return summary
