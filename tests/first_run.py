"""The files of `docs/howto/first-run.md`: its TOML blocks as they are printed there, and generated records."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "first-run.md"
FILES = ("run.toml", "server.toml", "bank.toml", "shop.toml")


def commands() -> list[list[str]]:
    """The arguments of every ``dpzv ...`` that the page tells to type."""
    return [shlex.split(line) for line in re.findall(r"^    dpzv (.*)$", PAGE.read_text(), re.MULTILINE)]


def write_files(folder: Path, customers: int = 1000) -> None:
    """Write the page's TOML files and three CSV files, each in an order of its own and without some customers."""
    blocks = re.findall(r"^```toml\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == list(FILES)
    for name, text in blocks:
        (folder / name).write_text(text)
    draw = np.random.default_rng(7)
    ids = [f"c-{number:05d}" for number in range(customers)]
    income, debt = draw.uniform(0, 110_000, customers), draw.uniform(0, 50_000, customers)
    returns = draw.uniform(0, 1, customers)
    bank = {"income": income.round(), "debt": debt.round(), "employment": draw.choice(WORK, customers)}
    shop = {"orders": draw.integers(0, 100, customers), "returns": returns.round(3)}
    shop["channel"] = draw.choice(["web", "app", "store", "fax"], customers)
    risk = debt / 50_000 - income / 110_000 + 1.5 * (returns - 0.5) + draw.normal(0, 0.3, customers)
    labels = {"outcome": np.where(risk > 0, "default", "paid")}
    for lacking, (name, columns) in enumerate({"labels": labels, "bank": bank, "shop": shop}.items(), 1):
        table = pd.DataFrame({"customer": ids, **columns})
        if name == "bank":
            table.loc[draw.random(customers) < 0.1, "debt"] = np.nan
        table.iloc[draw.permutation(customers)[10 * lacking :]].to_csv(folder / f"{name}.csv", index=False)


WORK = ["employed", "self-employed", "retired"]
