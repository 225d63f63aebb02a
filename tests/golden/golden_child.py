"""Short seeded runs of recipes and methods, as hashes; a process of its own, so that its arithmetic is pinned.

All recipes are there but `imdb`, which is `amazon` with longer reviews. Scorecards run with their own method only.

``python golden_child.py FOLDER`` prints one JSON object: case -> transcript, weights and figures, each a sha256.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config
from dpzv.data import catalogue
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.grid import layered
from dpzv.runtime.run import run

METHODS = ("dpzv", "vafl", "zoo-vfl", "vfl-czofo")
ACCOUNTINGS = ("exact", "paper")
RECORDS, WORDS = 128, 120
SMALL = (
    "train.B=16",
    "privacy.min_batch=16",
    "train.q=3",
    "train.eval_every=4",
    "head.batch=24",
    "head.steps=9",
    "head.refit_steps=4",
    "noise.source=seeded",
    "runtime.threads=1",
)
VIEWS = ("train.rounds=3", "devices.embedding=8", "head.hidden=16", "head.batch=12")
VARIANTS: dict[str, tuple[str, ...]] = {
    "joint-zo": ("head.rule=joint-zo",),
    "frozen": ("head.rule=frozen",),
    "sgd": ("privacy.accounting=paper", "head.rule=sgd"),
    "zo": ("privacy.accounting=paper", "head.rule=zo"),
    "float16": ("codec.name=float16",),
    "directions": ("train.directions=3", "head.rule=joint-zo"),
    "directions, float16": ("train.directions=3", "codec.name=float16"),
    "directions, int8": ("train.directions=3", "codec.name=int8", "devices.compute=[0.01, 0.02, 0.05, 0.013]"),
    "int8": ("codec.name=int8",),
    "asynchronous": ("devices.compute=exponential 0.01", "train.rounds=31"),
    "unequal": ("devices.compute=[0.01, 0.02, 0.05, 0.013]", "train.rounds=31"),
    "plain steps": ("train.momentum=0", "head.momentum=0.5", "train.schedule=cosine"),
    "empty table": ("table.start=zeros",),
    "no rounds": ("train.rounds=0",),
    "no rounds, private head": ("train.rounds=0", "head.final=private"),
    "zero-out": ("privacy.neighbours=zero-out",),
    "no privacy": ("privacy.epsilon=inf", "privacy.C=inf", "head.rule=sgd"),
    "holdout": ("data.holdout=0.25",),
}


def split(xs: list[NDArray[Any]], y: NDArray[Any], n_classes: int) -> Dataset:
    """The last quarter of the records is for test."""
    task, n = "binary" if n_classes == 2 else "classes", 3 * len(y) // 4
    return from_arrays(
        Records([x[:n] for x in xs], y[:n]), Records([x[n:] for x in xs], y[n:]), task=task, n_classes=n_classes
    )


def pictures(devices: int, pixels: int, n_classes: int, records: int = RECORDS) -> Dataset:
    draw = np.random.default_rng(pixels)
    y = np.arange(records) % n_classes
    xs = [draw.integers(0, 255, (len(y), pixels)).astype(np.uint8) for _ in range(devices)]
    return split(xs, y, n_classes)


def columns(*widths: int) -> Dataset:
    draw = np.random.default_rng(sum(widths))
    y = np.arange(RECORDS) % 2
    return split([(draw.random((len(y), k)) * 0.5 + 0.5 * y[:, None]).astype(np.float32) for k in widths], y, 2)


def texts() -> Dataset:
    draw = np.random.default_rng(7)
    y = np.arange(RECORDS) % 2
    return split([draw.integers(4, WORDS, (len(y), 8)).astype(np.int32) for _ in range(3)], y, 2)


def tiny_bert(folder: Path) -> str:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=16,
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return str(folder)


RECIPES: dict[str, tuple[Callable[[Config], Dataset], tuple[str, ...]]] = {
    "amazon": (lambda config: texts(), ("devices.embedding=24",)),
    "breast-cancer": (lambda config: catalogue.load("breast-cancer", columns=config.data.columns), ()),
    "cifar10": (lambda config: pictures(4, 768, 10), ("devices.embedding=8", "head.hidden=16")),
    "credit": (lambda config: columns(13, 10), ()),
    "digits": (lambda config: catalogue.load("digits", holdout=config.data.holdout), ()),
    "flights": (lambda config: columns(12, 9, 6), ("devices.embedding=[5, 4, 3]",)),
    "mnist": (lambda config: pictures(7, 112, 10), ()),
    "mnist-cnn": (lambda config: pictures(7, 112, 10), ()),
    "modelnet40": (lambda config: pictures(2, 1024, 4, 28), VIEWS),
}
"""Records for each recipe, its own where they are small and come with the installation, and what is made smaller."""

SCORECARDS = ("breast-cancer-scorecard", "credit-scorecard", "flights-scorecard")
"""They have the records of the recipes that they are like."""


def cases() -> Iterator[tuple[str, Config, Dataset]]:
    for recipe, (records, changes) in RECIPES.items():
        for accounting in ACCOUNTINGS[:1] if recipe == "modelnet40" else ACCOUNTINGS:  # a slow network
            for method in METHODS:
                base = layered(recipes.tree(recipe), recipes.settings(recipe, accounting), method, ())
                # the final head is the same for all methods
                final = () if method == "dpzv" else ("head.final=private",)
                config = parsed(base, f"train.method={method}", "train.rounds=9", *SMALL, *final, *changes)
                yield f"{recipe} {accounting} {method}", config, records(config)
    for recipe in SCORECARDS:
        config = parsed(recipes.tree(recipe), *SMALL, "train.rounds=12")
        yield recipe, config, RECIPES[recipe.removesuffix("-scorecard")][0](config)
    for name, changes in VARIANTS.items():
        config = parsed(recipes.tree("digits"), "train.rounds=14", *SMALL, *changes)
        yield f"digits, {name}", config, RECIPES["digits"][0](config)


def parsed(tree: dict[str, Any], *assignments: str) -> Config:
    for assignment in assignments:
        tree = configuration.merge(tree, configuration.set_key(assignment))
    return configuration.parse(tree)


def sha256(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def hashes(folder: Path) -> dict[str, str]:
    """What a finished run left: releases with their frames, all weights, and every figure but clock times and words."""
    weights: list[str | bytes] = []
    for file in sorted((folder / "weights").iterdir()):
        weights += [file.name]
        for name, tensor in sorted(load_file(file).items()):
            weights += [name, tensor.contiguous().numpy().tobytes()]
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for values in (*metrics, summary):
        for name in ("seconds", "statement", "guarantee_why", "participation", "versions", "data", "untrained"):
            values.pop(name, None)
    summary["private_head"].pop("trained")
    return {
        "transcript": sha256((folder / "transcript.jsonl").read_bytes()),
        "weights": sha256(*weights),
        "figures": sha256(json.dumps([metrics, summary], sort_keys=True)),
    }


def main(folder: Path) -> None:
    found = {}
    encoder = tiny_bert(folder / "bert")
    for number, (name, config, data) in enumerate(cases()):
        if config.recipe == "amazon":
            config = msgspec.structs.replace(config, data=msgspec.structs.replace(config.data, encoder=encoder))
        path = folder / str(number)
        networks: Any = lambda *given, config=config, data=data: make_networks(config, data, *given)  # noqa: E731
        assert run(config, data, networks, path, lambda snapshot: True, math.inf) is not None
        found[name] = hashes(path)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
