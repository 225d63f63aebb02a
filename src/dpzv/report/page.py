"""The report page: runs side by side as one HTML file that needs nothing else and asks for nothing from a network."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import msgspec

from dpzv.durable import write_atomically
from dpzv.metrics import headline_text
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
        title=_escaped(_title(runs)),
        about=_escaped(_about(runs, renew)),
        runs=_runs_part(runs),
        privacy=_privacy_part(runs),
        devices=_devices_part(runs),
        settings=_settings_part(runs),
        numbers=_numbers_part(runs),
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
    recipes = {str(run.settings.get("recipe") or "") for run in runs}
    return f"dpzv: {len(runs)} runs" + (f" of {recipes.pop()}" if len(recipes) == 1 and "" not in recipes else "")


def _about(runs: Sequence[RunRecord], renew: float) -> str:
    going = sum(run.summary is None for run in runs)
    told = f"{going} of {len(runs)} not finished." if going else "All finished." if runs else "No run yet."
    return told + (f" This page is renewed every {renew:g} seconds." if renew else "")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


COLOURS, DASHES = 8, 4
"""How many colours and kinds of lines the page has; the style sheet and the program know the same."""

DIFFERS = '<span aria-hidden="true">≠ </span><span class="unseen">differs: </span>'
"""What marks a setting that differs, besides its colour."""

FIRST = ("Guarantee", "Epsilon", "Risk")
"""The lines of a privacy statement that are put first and shown in bold."""


def _escaped(value: object) -> str:
    """Any value as text that is safe inside HTML, quotes included."""
    return html.escape(str(value), quote=True)


def _runs_part(runs: Sequence[RunRecord]) -> str:
    """One row a run: what it is, how good it is, what it cost and whether it has a guarantee."""
    if not runs:
        return "<p>There is no run here yet.</p>"
    names = ["Run", "Test, final head", "Epsilon", "Guarantee", "Test, head in the loop", "Test, untrained devices"]
    names += ["Rounds", "MB", "Seconds", "Method", "State"]
    return _table(names, [_run_row(i, run) for i, run in enumerate(runs)], "One row for each run.")


def _run_row(i: int, run: RunRecord) -> list[str]:
    summary, last = run.summary or {}, run.metrics[-1] if run.metrics else {}
    known = summary or last
    private, untrained = summary.get("private_head"), summary.get("untrained")
    in_loop = _result(last)
    if private:
        in_loop = _result(private) if private["trained"] else "not trained"
    sent = known.get("bytes_up")
    return [
        f'<span class="swatch c{i % COLOURS} d{i // COLOURS % DASHES}"></span>{_escaped(run.name)}',
        _result(summary),
        _escaped(_epsilon(run)),
        _verdict(run),
        in_loop,
        _result(untrained),
        f"{run.rounds:,}",
        "-" if sent is None else f"{(sent + known['bytes_down']) / 1e6:,.1f}",
        _number(known.get("seconds")),
        _escaped(run.method if run.rounds or not private else "untrained"),
        "finished" if run.summary else "under way",
    ]


def _result(values: Mapping[str, Any] | None) -> str:
    """The metric that says most; some runs measure something else, such as memory, and have none."""
    return _escaped(headline_text(values)) if values and "test_loss" in values else "-"


def _epsilon(run: RunRecord) -> str:
    """What was asked for or is claimed; while a run goes on, beside what it has spent."""
    if run.summary is not None:
        epsilon = run.summary.get("epsilon")
        return "none" if epsilon is None else f"{epsilon:g}"
    asked = run.settings.get("privacy.epsilon", math.inf)
    if not isinstance(asked, int | float) or math.isinf(asked):
        return "none"
    spent = run.metrics[-1].get("epsilon_spent") if run.metrics else None
    return f"{_number(spent or 0.0)} of {asked:g}"


def _verdict(run: RunRecord) -> str:
    if run.summary is None:
        return "at the end"
    given = bool(run.summary.get("guarantee"))
    return f'<span class="verdict {"yes" if given else "no"}">{"yes" if given else "no"}</span>'


def _privacy_part(runs: Sequence[RunRecord]) -> str:
    """The privacy statement of every run in its own words, the verdict, the epsilon and the risk first."""
    return "".join(_folded(run, _statement(run), is_open=i == 0) for i, run in enumerate(runs)) or "<p>No run yet.</p>"


def _statement(run: RunRecord) -> str:
    if run.summary is None:
        return (
            "<p>This run is not finished, and its statement is written at its end. Until then "
            "<code>dpzv privacy spent</code> with its folder tells what its ledger holds.</p>"
        )
    if "statement" not in run.summary:
        return f"<p>{_verdict(run)} This run makes no privacy statement.</p>"
    told = re.findall(r"^  ([A-Z][\w ]*?): +(.*)$", run.summary["statement"], re.MULTILINE)
    told.sort(key=lambda line: line[0] not in FIRST)
    lines = "".join(
        f'<dt class="key">{_escaped(label)}</dt><dd class="key">{_escaped(text)}</dd>'
        if label in FIRST
        else f"<dt>{_escaped(label)}</dt><dd>{_escaped(text)}</dd>"
        for label, text in told
    )
    return f"{_verdict(run).replace('>yes<', '>guarantee<').replace('>no<', '>no guarantee<')}<dl>{lines}</dl>"


def _devices_part(runs: Sequence[RunRecord]) -> str:
    """What each device did in every finished run, and how old its embeddings were when others' rounds used them."""
    names = ["Device", "Rounds", "Share of rounds", "Mean delay, rounds", "Records clipped", "Rows set to zero"]
    names.append("Sent test records")
    parts: list[str] = []
    for run in runs:
        took_part = (run.summary or {}).get("participation")
        if took_part:
            rounds = max(1, sum(one["rounds"] for one in took_part))
            rows = [_device_row(one, one["rounds"] / rounds) for one in took_part]
            known = run.summary or {}
            told = f"Over all devices: mean delay {known['mean_delay']:.2f}, longest {known['max_delay']} rounds."
            parts.append(_folded(run, _table(names, rows, told), is_open=not parts))
    return "".join(parts) or "<p>What each device took part in is told when a run is finished.</p>"


def _device_row(one: Mapping[str, Any], share: float) -> list[str]:
    return [
        _escaped(one["device"]),
        f"{one['rounds']:,}",
        f'<meter min="0" max="1" value="{share:.4f}" aria-label="share of rounds"></meter>{share:.1%}',
        _number(one.get("mean_delay")),
        f"{one['clipped_share']:.1%}",
        f"{one['zeroed_rows']:,}",
        "yes" if one["tested"] else "no: zeros stand in its place",
    ]


def _settings_part(runs: Sequence[RunRecord]) -> str:
    """The settings that differ between runs, marked where they differ from the first run's; then all settings."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    differing = [key for key in keys if len({_setting(run, key) for run in runs}) > 1]
    if len(runs) < 2:
        told = ""
    elif differing:
        rows = []
        for run in runs:
            words = [_setting(run, key) for key in differing]
            marks = [word != _setting(runs[0], key) for key, word in zip(differing, words, strict=True)]
            cells = [
                f"<mark>{DIFFERS}{_escaped(w)}</mark>" if m else _escaped(w) for w, m in zip(words, marks, strict=True)
            ]
            rows.append([_escaped(run.name), *cells])
        told = _table(
            ("Run", *map(_escaped, differing)), rows, "Settings that differ; marked ≠: not as in the first run."
        )
    else:
        told = "<p>All runs have the same settings.</p>"
    lines = "".join(
        (f'<tr class=differs><th scope="row">{DIFFERS}' if key in differing else '<tr><th scope="row">')
        + f"{_escaped(key)}</th>"
        f'<td class="words long">{_escaped(" | ".join(dict.fromkeys(_setting(run, key) for run in runs)))}</td></tr>'
        for key in sorted(keys)
    )
    every = _scrolled("All settings; marked ≠: they differ.", f"<tbody>{lines}</tbody>")
    return f'{told}<details data-run="all settings"><summary>All settings</summary>{every}</details>'


def _setting(run: RunRecord, key: str) -> str:
    value = run.settings.get(key, "not set")
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def _numbers_part(runs: Sequence[RunRecord]) -> str:
    """Every line of metrics, for those who read tables and not curves."""
    parts = []
    for run in runs:
        names = dict.fromkeys(name for line in run.metrics for name, value in line.items() if value is not None)
        rows = [[_number(line.get(name)) for name in names] for line in run.metrics]
        title = [_escaped(name.replace("_", " ")) for name in names]
        told = _table(title, rows, "Measured on test records, with the head in the loop.")
        parts.append(_folded(run, told if rows else "<p>There are none.</p>", is_open=False))
    return "".join(parts) or "<p>No run yet.</p>"


def _folded(run: RunRecord, inside: str, *, is_open: bool) -> str:
    name, opened = _escaped(run.name), " open" if is_open else ""
    return f'<details data-run="{name}"{opened}><summary>{name}</summary>{inside}</details>'


def _table(names: Iterable[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """A table of cells that are HTML already; the first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    return _scrolled(caption, f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>")


def _scrolled(caption: str, parts: str) -> str:
    """A table that is wider than the page is scrolled by itself, by keyboard too; its caption stays in view."""
    return (
        f'<div class="wide" role="group" aria-label="{_escaped(caption)}" tabindex="0">'
        f"<table><caption><span>{_escaped(caption)}</span></caption>{parts}</table></div>"
    )


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"
