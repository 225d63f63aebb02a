"""The report page: runs side by side as one HTML file that needs nothing else and asks for nothing from a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from dpzv.durable import write_atomically
from dpzv.report.page_parts import devices_part, escaped, numbers_part, privacy_part, runs_part, settings_part
from dpzv.report.run_records import RunRecord, read_runs
from dpzv.version import VERSION

__all__ = ["page", "write_page"]

ASSETS = Path(__file__).with_name("assets")

NOBODY, SERVER = "'none'", "'self'"
"""Whom a content security policy lets a page talk to."""

AXES = ("round", "seconds", "virtual_seconds", "megabytes")
"""What curves are drawn against."""

CURVES = {
    "test_accuracy": ("Test accuracy, %", 100.0),
    "test_auc": ("Test AUC", 1.0),
    "test_r2": ("Test R²", 1.0),
    "test_loss": ("Test loss", 1.0),
    "epsilon_spent": ("Privacy spent, epsilon", 1.0),
    "megabytes": ("Megabytes sent, first fill included", 1.0),
    "mean_delay": ("Mean delay of the embeddings used, rounds", 1.0),
}
"""What is drawn, by its key in metrics.jsonl: its title, and by what it is multiplied."""


def write_page(places: Sequence[Path], file: Path) -> int:
    """Write the page of all runs at and below `places` to `file`, for its owner alone; the number of runs is returned.

    Where there is no run, nothing is written.
    """
    runs = read_runs(places)
    if runs:
        write_atomically(file, page(runs).encode())
    return len(runs)


def page(runs: Sequence[RunRecord], renew: float = 0) -> str:
    """The page of `runs`; it asks its server for a newer one every `renew` seconds, unless that is 0."""
    library, program = _asset("uplot.js"), _asset("page.js")
    style = _asset("uplot.css") + "\n" + _asset("page.css")
    # nothing else may run or be fetched, whatever a name in these records contains
    policy = (
        f"default-src {NOBODY}; img-src data:; style-src {_hash(style)}; script-src {_hash(library)} {_hash(program)}; "
        f"connect-src {SERVER if renew else NOBODY}; base-uri {NOBODY}; form-action {NOBODY}"
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=escaped(_title(runs)),
        about=escaped(_about(runs, renew)),
        runs=runs_part(runs),
        privacy=privacy_part(runs),
        devices=devices_part(runs),
        settings=settings_part(runs),
        numbers=numbers_part(runs),
        data=msgspec.json.encode(_data(runs, renew)).decode().replace("<", "\\u003c"),
        version=VERSION,
        style=style,
        library=library,
        program=program,
    )


def _data(runs: Sequence[RunRecord], renew: float) -> dict[str, Any]:
    """What the curves are drawn from; a value that is missing or not finite is `None`."""
    drawn = [key for key in CURVES if any(_value(line, key) is not None for run in runs for line in run.metrics)]
    return {
        "renew": renew,
        "charts": [{"key": key, "title": CURVES[key][0]} for key in drawn],
        "runs": [
            {"name": run.name, "values": {k: [_value(line, k) for line in run.metrics] for k in {*AXES, *drawn}}}
            for run in runs
        ],
    }


def _value(line: dict[str, Any], key: str) -> float | None:
    if key == "megabytes":
        return float(line["bytes_up"] + line["bytes_down"]) / 1e6
    value = line.get(key)
    return None if value is None else CURVES.get(key, ("", 1.0))[1] * value


def _title(runs: Sequence[RunRecord]) -> str:
    if len(runs) == 1:
        return f"dpzv: {runs[0].name}"
    recipes = dict.fromkeys(str(run.settings["recipe"]) for run in runs if run.settings.get("recipe"))
    return f"dpzv: {len(runs)} runs" + (f" of {', '.join(recipes)}" if recipes else "")


def _about(runs: Sequence[RunRecord], renew: float) -> str:
    going = sum(run.summary is None for run in runs)
    told = f"{going} of {len(runs)} not finished." if going else "All finished." if runs else "No run yet."
    return told + (f" This page is renewed every {renew:g} seconds." if renew else "")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
