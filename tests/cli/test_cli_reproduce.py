"""`dpzv reproduce all --scale smoke`: every figure and table from real runs, which a second call does not run again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
import typer

from dpzv.cli import main
from dpzv.cli.many_runs import fail
from dpzv.report.reproduction_page import numbers
from dpzv.runtime.computed_once import FOLDER
from dpzv.runtime.grid import Failure
from dpzv.runtime.reproduction_files import ITEMS


def dpzv(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command inside this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["dpzv", *arguments])
        try:
            main()
            code: int | str | None = 0
        except SystemExit as stop:
            code = stop.code
    return int(code or 0), out.getvalue(), err.getvalue()


def test_a_reason_for_which_many_runs_failed_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as stopped:
        fail([*(Failure(f"run-{i}", 3, "no encoder.") for i in range(5)), Failure("other", 2, "no disk.")])
    assert stopped.value.exit_code == 3
    assert capsys.readouterr().err.splitlines() == [
        "dpzv: run-0, run-1, run-2 and 2 more failed: no encoder.",
        "dpzv: other failed: no disk.",
    ]
    fail([])


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole reproduction, of which the first call had no time for a single run."""
    out = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPZV_DATA", str(out / "nothing"))
        command = ["reproduce", "all", "--scale", "smoke", "--out", str(out)]
        code, said, err = dpzv(*command, "--budget", "0")
        assert code == 0, err
        assert said.startswith("0 of ")
        assert "side by side" not in said  # no run, no page
        assert "not run yet" in (out / "reproduction.md").read_text()
        assert not list(out.glob("runs/*/summary.json"))
        code, said, err = dpzv(*command, "--quiet")
        assert (code, said, err) == (0, "", ""), err
    assert FOLDER not in os.environ  # it was named for the runs alone
    return out


def test_every_item_has_its_figure_its_table_and_its_place_on_the_page(smoke: Path) -> None:
    page = (smoke / "reproduction.md").read_text()
    for name in ITEMS:
        assert f"\n## {name}: " in page
        assert f"](figures/{name}.svg)" in page
        assert (smoke / "figures" / f"{name}.svg").read_text().lstrip().startswith("<?xml")
        assert (smoke / "figures" / f"{name}.png").stat().st_size > 10_000
        assert (smoke / "tables" / f"{name}.md").read_text() in page
    for number in numbers():
        assert f"\n| {number.what} | {number.paper} | " in page
    assert "not run yet" not in page
    assert "a smoke test shows that the figures can be drawn, and nothing else" in page


def test_the_figures_of_the_page_are_those_of_the_run_records(smoke: Path) -> None:
    files = smoke.glob("runs/smoke-exact-dpzv-eps10-seed0-*/summary.json")
    (summary,) = (found for found in map(json.loads, map(Path.read_text, files)) if found["test_accuracy"] is not None)
    table = (smoke / "tables" / "fig-honest.md").read_text()
    (row,) = re.findall(r"^\| digits \(smoke\) \| DPZV, first-order head \| exact \| 10 \|.*$", table, re.MULTILINE)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[5] == f"{100 * summary['private_head']['test_accuracy']:.2f}"
    assert cells[6] == f"{100 * summary['test_accuracy']:.2f}"
    assert cells[7] == f"{(summary['bytes_up'] + summary['bytes_down']) / 1e6:.1f}"


def test_finished_runs_keep_their_records_and_not_their_weights(smoke: Path) -> None:
    runs = [file.parent for file in smoke.glob("runs/*/summary.json")]
    assert runs
    assert not [run for run in runs if (run / "weights").exists() or (run / "checkpoint").exists()]


def test_frozen_devices_have_the_head_of_the_trained_ones_and_never_move(smoke: Path) -> None:
    table = (smoke / "tables" / "fig-convergence.md").read_text()
    for row, title, rule in (("frozen", "first-order head", "sgd"), ("frozen-zo", "zeroth-order head", "zo")):
        assert f"| devices frozen, {title} | paper |" in table
        files = smoke.glob(f"runs/smoke-paper-{row}-epsinf-*/summary.json")
        summaries = [json.loads(file.read_text()) for file in files]
        assert {summary["head_rule"] for summary in summaries} == {rule}
        assert all(summary["private_head"]["trained"] for summary in summaries)
        assert {summary["rounds"] for summary in summaries} == {24}


def test_the_trials_are_kept_and_what_follows_has_their_settings(smoke: Path) -> None:
    trials = [json.loads(line) for line in (smoke / "tuning" / "smoke-paper.jsonl").read_text().splitlines()]
    assert {trial["row"] for trial in trials} == {"dpzv", "dpzv-zo", "vafl", "zoo-vfl", "vfl-czofo"}
    (vafl,) = (trial for trial in trials if trial["row"] == "vafl")
    (file,) = smoke.glob("runs/smoke-paper-vafl-eps10-seed0-*/config.toml")
    assert f"C_h = {vafl['settings']['privacy.C_h']}" in file.read_text()
    rows = (smoke / "tables" / "fig-convergence.md").read_text().splitlines()
    assert {"all weights" in row for row in rows if "untuned" in row} == {True}


def test_finished_runs_are_not_run_again(smoke: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in smoke.glob("runs/*/summary.json")}
    code, said, err = dpzv("reproduce", "fig-delay", "--scale", "smoke", "--out", str(smoke))
    assert code == 0, err
    assert said.startswith("12 of 12 rows have runs")
    assert said.endswith(f"Runs side by side: {smoke / 'pages' / 'fig-delay.html'}\n")
    assert before == {file: file.stat().st_mtime_ns for file in smoke.glob("runs/*/summary.json")}
    code, said, err = dpzv("reproduce", "all", "--scale", "smoke", "--out", str(smoke), "--list")
    assert code == 0, err
    assert "To run: 0 s" in said
    assert said.count("finished") == len(before)


def names_on(page: Path) -> set[str]:
    """The runs that a report page shows."""
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return {run["name"] for run in json.loads(data)["runs"]}


def test_every_item_with_runs_has_a_report_page_without_trials(smoke: Path) -> None:
    pages = {file.stem: names_on(file) for file in (smoke / "pages").iterdir()}
    assert pages.keys() == {*ITEMS} - {"fig-overview"}  # which is a drawing
    runs = {file.parent.name for file in smoke.glob("runs/*/summary.json")}
    assert all(names and names <= runs for names in pages.values())
    shown = set[str]().union(*pages.values())
    trials = [run for run in runs - shown if "holdout = 0.0" not in (smoke / "runs" / run / "config.toml").read_text()]
    assert len(trials) == len(runs - shown) > 0


def test_a_report_page_is_written_again_where_its_runs_changed_and_nowhere_else(smoke: Path) -> None:
    """The page is named at the end, and a command that runs nothing does not spend its time on pages."""
    command = ["reproduce", "all", "--scale", "smoke", "--out", str(smoke), "--budget", "0"]
    assert dpzv(*command)[0] == 0
    pages = {file: file.stat().st_mtime_ns for file in (smoke / "pages").iterdir()}
    (smoke / "pages" / "fig-delay.html").write_text("an older page")
    run = sorted(names_on(smoke / "pages" / "fig-clipping.html"))[0]
    os.utime(smoke / "runs" / run / "summary.json")
    code, said, err = dpzv(*command)
    assert code == 0, err
    assert said.endswith(f"Runs side by side: {smoke / 'pages'}\n")
    again = {file.stem for file, before in pages.items() if file.stat().st_mtime_ns != before}
    assert again == {"fig-delay", *(file.stem for file in pages if run in names_on(file))}
    assert again != {file.stem for file in pages}


def test_the_list_has_seconds_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path / "nothing"))
    code, said, err = dpzv("reproduce", "fig-delay", "--scale", "smoke", "--out", str(tmp_path / "out"), "--list")
    assert (code, err) == (0, "")
    lines = said.splitlines()
    assert lines[0].split() == ["seconds", "state", "run"]
    assert all(re.fullmatch(r"\d+ +to run +smoke-paper-dpzv-eps1-seed0-[0-9a-f]{12}", line) for line in lines[1:4])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig-convergense"], "did you mean 'fig-convergence'"),
        (["all", "--data", "modelnet40"], "WORKLOAD=PATH"),
        (["all", "--data", "modelnet=views.npz"], "'modelnet40'"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(arguments: list[str], words: str) -> None:
    code, _, err = dpzv("reproduce", *arguments)
    assert code == 2
    assert words in err
