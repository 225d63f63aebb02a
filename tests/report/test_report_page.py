"""What the report page says, against the run folders that it was made from; how it looks is tested in a browser."""

from __future__ import annotations

import hashlib
import html
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpzv.cli.main import app
from dpzv.errors import ConfigError, DataError, PeerError
from dpzv.report.page import ASSETS, page, write_page
from dpzv.report.page_server import PageServer
from dpzv.report.run_records import read_runs
from tests.report.conftest import serving, train


def data_of(text: str) -> dict[str, Any]:
    """What the page draws its curves from."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return dict(json.loads(found))


def words_of(text: str) -> str:
    """The page without its programs and tags, with single spaces."""
    body = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def test_curves_are_the_lines_of_metrics(runs: Path) -> None:
    found = data_of(page(read_runs([runs])))
    assert [run["name"] for run in found["runs"]] == ["first", "half"]
    assert {chart["key"] for chart in found["charts"]} == {
        *("test_accuracy", "test_auc", "test_loss", "epsilon_spent", "megabytes", "mean_delay")
    }
    for run in found["runs"]:
        lines, values = lines_of(runs / run["name"]), run["values"]
        assert values["test_accuracy"] == [100 * line["test_accuracy"] for line in lines]
        assert values["megabytes"] == [(line["bytes_up"] + line["bytes_down"]) / 1e6 for line in lines]
        for key in ("round", "seconds", "virtual_seconds", "test_auc", "test_loss", "mean_delay", "epsilon_spent"):
            assert values[key] == [line[key] for line in lines], key
    assert found["renew"] == 0


def test_every_line_of_the_privacy_statement_is_on_the_page(runs: Path) -> None:
    words = words_of(page(read_runs([runs])))
    for name in ("first", "half"):
        told = summary_of(runs / name)["statement"].splitlines()[1:]
        assert any("best attack on one record" in line for line in told)
        for line in told:
            label, text = line.strip().split(":", 1)
            assert f"{label} {' '.join(text.split())}" in words


def test_devices_and_results_are_those_of_the_summary(runs: Path) -> None:
    text = page(read_runs([runs / "first"]))
    summary, words = summary_of(runs / "first"), words_of(text)
    assert f"AUC {summary['test_auc']:.4f} {summary['epsilon']:g} yes" in words
    for one in summary["participation"]:
        share = one["rounds"] / summary["rounds"]
        assert (
            f"{one['device']} {one['rounds']} {share:.1%} {one['mean_delay']:.5g} {one['clipped_share']:.1%}" in words
        )
    entries = sum(one["mean_delay"] for one in summary["participation"])
    assert 0 < summary["mean_delay"] <= entries
    assert f"longest {summary['max_delay']} rounds" in words


def test_settings_that_differ_are_marked_and_no_others(runs: Path) -> None:
    text = page(read_runs([runs]))
    names = re.findall(r'<tr class=differs><th scope="row">(.*?)</th>', text)
    # in words as well as by a colour, which nobody hears and not everybody sees
    assert [words_of(name) for name in names] == ["≠ differs: privacy.epsilon", "≠ differs: train.eval_every"]
    marked = re.findall(r"<mark>(.*?)</mark>", text)
    assert [words_of(cell) for cell in marked] == ["≠ differs: 15", "≠ differs: 0.5"]  # in the order of config.toml
    assert text.count("differs: </span>") == 4
    same = page(read_runs([runs / "first"]))
    assert "<mark>" not in same
    assert "class=differs" not in same


def test_a_run_that_goes_on_is_shown_as_far_as_it_came(stopped: Path, tmp_path: Path) -> None:
    """Half a line, as a page that is made at the wrong moment finds it, is left for the next time."""
    copy = tmp_path / "live"
    copy.mkdir()
    (copy / "config.toml").write_bytes((stopped / "config.toml").read_bytes())
    assert "under way" in words_of(page(read_runs([copy])))  # there are no metrics yet
    (copy / "metrics.jsonl").write_bytes((stopped / "metrics.jsonl").read_bytes() + b'{"round": 4')
    text = page(read_runs([copy]))
    (run,) = data_of(text)["runs"]
    assert run["values"]["round"] == [line["round"] for line in lines_of(stopped)]
    assert "at the end" in words_of(text)
    assert "dpzv privacy spent" in words_of(text)


def test_a_ceiling_has_metrics_and_nothing_else_and_other_measurements_not_even_these(
    runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_bytes((runs / "first" / "config.toml").read_bytes())
    (tmp_path / "summary.json").write_text(
        '{"schema": 1, "method": "backpropagation", "test_accuracy": 0.9, "test_auc": 0.95, "test_loss": 0.3}'
    )
    words = words_of(page(read_runs([tmp_path])))
    assert "AUC 0.9500 none no" in words
    assert "makes no privacy statement" in words
    (tmp_path / "summary.json").write_text('{"schema": 1, "peaks": {"dpzv": 12345}}')
    assert f"{tmp_path.name} - none no" in words_of(page(read_runs([tmp_path])))


def test_names_cannot_become_part_of_the_page(runs: Path, tmp_path: Path) -> None:
    bad = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    folder = tmp_path / bad.replace("/", "∕")
    folder.mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        (folder / name).write_bytes((runs / "first" / name).read_bytes())
    summary = summary_of(runs / "first")
    summary["participation"][0]["device"] = summary["method"] = bad
    (folder / "summary.json").write_text(json.dumps(summary))
    text = page(read_runs([folder]))
    assert text.count("<script") == page(read_runs([runs / "first"])).count("<script")
    assert "<img" not in text
    assert bad in words_of(text)


def test_the_page_is_one_file_for_its_owner_that_asks_for_nothing(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "page.html"
    assert write_page([runs, runs / "half"], file) == 2  # a run that is named twice is shown once
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert len(text) < 400_000
    assert re.findall(r'(?:src|href)="([^"#][^"]*)"', text) == ["data:,"]
    assert "default-src 'none'" in text
    assert "connect-src 'none'" in text
    assert "unsafe" not in re.findall(r'Content-Security-Policy" content="(.*?)"', text)[0]
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert write_page([nothing], tmp_path / "none.html") == 0
    assert not (tmp_path / "none.html").exists()


def test_the_title_names_a_recipe_only_if_all_runs_have_it(runs: Path) -> None:
    """Parties' own files have no recipe, and a page may show different ones."""
    both = read_runs([runs])
    assert "<title>dpzv: 2 runs of breast-cancer</title>" in page(both)
    for recipe in ("", "flights"):
        other = replace(both[1], settings=both[1].settings | {"recipe": recipe})
        assert "<title>dpzv: 2 runs</title>" in page([both[0], other])


def test_what_devices_saw_is_no_run_of_its_own(tmp_path: Path) -> None:
    """A view has the configuration of its run, too, but not before the file by which it is told from a run."""
    train(tmp_path / "seen", "train.rounds=6", record_view=True)
    views = list(tmp_path.glob("seen/view/device-*"))
    assert len(views) > 1
    for view in views:
        assert (view / "view.json").stat().st_mtime_ns <= (view / "config.toml").stat().st_mtime_ns
    assert [run.name for run in read_runs([tmp_path])] == ["seen"]
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path / "seen"), "--out", str(out)])
    assert (done.exit_code, done.output) == (0, f"Report page of 1 run: {out}\n")
    assert read_runs([tmp_path / "seen" / "view"]) == []


def test_the_command_writes_the_page_or_says_what_is_missing(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(runs / "first"), str(runs / "half"), "--out", str(out)])
    assert (done.exit_code, done.output) == (0, f"Report page of 2 runs: {out}\n")
    assert [run["name"] for run in data_of(out.read_text())["runs"]] == ["first", "half"]
    for folder, words in ((tmp_path, "expected a run in"), (tmp_path / "none", "which is no folder")):
        failed = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "no.html")])
        assert isinstance(failed.exception, ConfigError)
        assert words in str(failed.exception)
    (tmp_path / "config.toml").write_bytes((runs / "first" / "config.toml").read_bytes())
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DataError, match="is not the folder of a run that can be read"):
        read_runs([tmp_path])


def test_the_server_answers_its_own_address_only(runs: Path, tmp_path: Path) -> None:
    with serving(runs) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{22}/", server.address)
        with urllib.request.urlopen(server.address) as answer:
            text = answer.read().decode()
            assert answer.headers["Cache-Control"] == "no-store"
        assert data_of(text)["renew"] > 0
        assert "connect-src 'self'" in text
        base = f"http://127.0.0.1:{server.server_port}"
        for path in ("/", f"/{server.secret}", f"/{server.secret}/first", "/../etc/passwd", f"/{server.secret[:-1]}x/"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(base + path)
        with pytest.raises(PeerError, match="choose another --port"):
            PageServer([runs], server.server_port)
    with pytest.raises(ConfigError, match="which is no folder"):
        PageServer([tmp_path / "none"])


def test_the_command_serves_the_page_until_it_is_stopped(runs: Path) -> None:
    command = [sys.executable, "-m", "dpzv", "watch", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            (address,) = re.findall(r"Open (\S+) in a browser", process.stdout.readline())
            with urllib.request.urlopen(address) as answer:
                assert len(data_of(answer.read().decode())["runs"]) == 2
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, error) == (0, "")


def test_the_library_is_the_published_one() -> None:
    """As in the package uplot 1.6.32 of the npm registry."""
    found = hashlib.sha256((ASSETS / "uplot.js").read_bytes()).hexdigest()
    assert found == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
