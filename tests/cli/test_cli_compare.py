"""`dpzv compare` and `dpzv tune` with real runs in processes of their own."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli

ROUNDS = 400
SHORT = [
    "noise.source=seeded",
    "runtime.threads=1",
    f"train.rounds={ROUNDS}",
    "train.B=128",
    "train.eval_every=50",
    "train.target=[0.01]",
    "head.final=private",  # a refit takes Adam, whose import costs each of these processes seconds
]
SETS = [part for setting in SHORT for part in ("--set", setting)]
COMPARE = ["compare", "digits", "--methods", "dpzv", "--epsilon", "5", "--seeds", "2", "--accounting", "paper", *SETS]


def dpzv(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "dpzv", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def summaries(out: Path, start: str) -> list[dict[str, Any]]:
    """The summaries of the runs whose name begins so, by seed."""
    return [json.loads(file.read_text()) for file in sorted(out.glob(f"runs/{start}*/summary.json"))]


def stamps(out: Path) -> dict[str, int]:
    """When each run wrote its summary."""
    return {file.parent.name: file.stat().st_mtime_ns for file in out.glob("runs/*/summary.json")}


@dataclass(frozen=True)
class Interrupted:
    """What Ctrl-C left of a comparison: exit code, words, and when each run that was begun wrote its config."""

    code: int
    told: str
    unfinished: dict[str, int]
    locks: list[Path]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Interrupted]:
    """The folder of a comparison that was interrupted once and then finished by the same command."""
    folder = tmp_path_factory.mktemp("compared")
    out, arguments = folder / "out", [*COMPARE, "--jobs", "2", "--out", "out"]
    first = subprocess.Popen([sys.executable, "-m", "dpzv", *arguments], cwd=folder, stderr=subprocess.PIPE, text=True)
    while not list(out.glob("runs/dpzv-*/checkpoint/")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=60)
    begun = {file.parent.name: file.stat().st_mtime_ns for file in out.glob("runs/*/config.toml")}
    unfinished = {name: at for name, at in begun.items() if name not in stamps(out)}
    interrupted = Interrupted(first.returncode, told, unfinished, list(out.glob("runs/*/*.lock")))
    done = dpzv(folder, *arguments)
    assert done.returncode == 0, done.stderr
    (out / "printed.txt").write_text(done.stdout)
    return out, interrupted


@pytest.fixture(scope="module")
def compared(comparison: tuple[Path, Interrupted]) -> Path:
    """The folder of a finished comparison, with what was printed in it."""
    return comparison[0]


def test_ctrl_c_stops_the_children_and_the_same_command_goes_on(comparison: tuple[Path, Interrupted]) -> None:
    out, interrupted = comparison
    assert interrupted.code == 130
    assert "same command again" in interrupted.told
    assert interrupted.unfinished
    assert interrupted.locks == []  # the children are gone
    for name, begun in interrupted.unfinished.items():
        assert (out / "runs" / name / "config.toml").stat().st_mtime_ns == begun  # resumed, not begun again
        assert json.loads((out / "runs" / name / "summary.json").read_text())["rounds"] == ROUNDS


def test_the_table_holds_the_means_of_the_summaries(compared: Path) -> None:
    rows = {row["method"]: row for row in json.loads((compared / "table.json").read_text())["rows"]}
    assert list(rows) == ["untrained", "dpzv"]
    for method, row in rows.items():
        runs = summaries(compared, method)
        assert [run["seed"] for run in runs] == [0, 1]
        accuracy = [run["test_accuracy"] for run in runs]
        in_loop = [run["private_head"]["test_accuracy"] for run in runs]
        assert row["refitted"] == pytest.approx(statistics.fmean(accuracy))
        assert row["refitted_spread"] == pytest.approx(statistics.stdev(accuracy))
        assert row["in_loop"] == pytest.approx(statistics.fmean(in_loop))
        assert row["bytes_total"] == statistics.fmean(run["bytes_up"] + run["bytes_down"] for run in runs)
        assert row["virtual_seconds"] == pytest.approx(statistics.fmean(run["virtual_seconds"] for run in runs))
        if method != "untrained":
            passed = [run["targets"]["0.01"]["bytes"] for run in runs]
            assert row["bytes_to_target"] == statistics.fmean(passed)
            assert row["rounds"] == ROUNDS
    printed = (compared / "printed.txt").read_text()
    assert f"{100 * rows['dpzv']['refitted']:.2f} ± " in printed
    assert "No guarantee for" in printed
    assert "| dpzv (untuned) | 5 | " in (compared / "table.md").read_text()
    assert "Untuned for digits: dpzv." in printed
    assert ">dpzv</text>" in (compared / "figure.svg").read_text()
    assert "Report page: out/report.html" in printed
    assert all(f'"name":"{run.name}"' in (compared / "report.html").read_text() for run in compared.glob("runs/*/"))


def test_a_second_call_runs_nothing_again_and_a_failing_run_does_not_stop_the_others(
    compared: Path, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    before = stamps(out)
    assert len(before) == 4
    again = cli(*COMPARE, "--out", "out", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == json.loads((compared / "table.json").read_text())
    assert stamps(out) == before

    (broken,) = out.glob("runs/dpzv-eps5-seed0-*/")
    (gone,) = out.glob("runs/untrained-seed1-*/")
    shutil.rmtree(gone)
    (broken / "summary.json").unlink()
    (broken / "ledger.sqlite").unlink()  # a resumed run without its ledger is refused
    failed = cli(*COMPARE, "--out", "out")
    assert failed.returncode == 4, failed.stderr
    assert "dpzv: dpzv-eps5-seed0 failed: " in failed.stderr
    assert "ledger" in failed.stderr.splitlines()[-1]
    assert (gone / "summary.json").exists()
    assert "dpzv at epsilon 5: 1 of 2 seeds finished." in failed.stdout


def test_runs_on_other_files_are_not_taken_for_those_asked_for(compared: Path, cli: Cli, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "out")
    other = cli(*COMPARE, "--out", "out", "--set", "data.path=elsewhere")
    assert other.returncode == 2, other.stderr
    assert "was run with data.path '', now it is 'elsewhere'; give another --out" in other.stderr


def test_tuning_charges_and_tries_each_method_and_keeps_the_best(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(
        '[dpzv]\n"train.eta_m" = [0.001, 0.003, 0.01]\n[vafl]\ntrain.eta_m = [0.1, 0.3]\n'
    )
    common = ["--epsilon", "5", "--accounting", "paper", "--methods", "dpzv,vafl", *SETS, "--set", "train.rounds=4"]
    common += ["--set", "privacy.epsilon=3"]  # --epsilon decides
    done = cli("tune", "digits", "--trials", "1", "--space", "space.toml", "--out", "out", *common, "--json")
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (tmp_path / "out" / "trials.jsonl").read_text().splitlines()]
    assert json.loads(done.stdout) == trials
    assert [(trial["method"], trial["number"]) for trial in trials] == [("dpzv", 1), ("vafl", 1)]
    for trial in trials:
        (run,) = tmp_path.glob(f"out/runs/{trial['method']}-*-{trial['config_hash'][:12]}/summary.json")
        summary = json.loads(run.read_text())
        assert trial["refitted"] == summary["test_accuracy"]
        assert trial["score"] == summary["private_head"]["test_accuracy"]
        assert summary["data"]["records"] == 1294  # a tenth of 1,438 judges the trial
        assert summary["method"] == trial["method"]
    best = (tmp_path / "out" / "best.toml").read_text()
    assert f"eta_m = {trials[1]['settings']['train.eta_m']}  # trial 1, the best of 1" in best
    assert 'where = "uplink"' in best
    # what --set changed is in it, too, but for what a tuning decides by itself
    assert tomllib.loads(best)["all"]["train"]["rounds"] == 4
    assert "rounds = 4  # set by --set" in best
    assert "epsilon" not in tomllib.loads(best)["all"]["privacy"]
    assert "2 trials may spend epsilon 5 each on the same records, and what they spend adds up" in done.stderr
    # the trials are earlier runs of whatever goes on with their settings
    assert tomllib.loads(best)["all"]["privacy"]["parents"] == [str(tmp_path / "out")]
    going_on = tomllib.loads((tmp_path / "out" / "train-dpzv.toml").read_text())
    assert going_on["privacy"]["parents"] == [str(tmp_path / "out")]
    assert going_on["data"]["holdout"] == 0.1  # the records that judged the trials stay out
    assert going_on["train"]["eta_m"] == trials[0]["settings"]["train.eta_m"]
    costs = json.loads((tmp_path / "out" / "compute.json").read_text())["costs"].values()
    factors = {cost["method"]: cost["factor"] for cost in costs}
    assert factors["dpzv"] == 1
    (file,) = tmp_path.glob("out/runs/vafl-*.toml")
    assert tomllib.loads(file.read_text())["devices"]["compute"] == pytest.approx(0.01 * factors["vafl"])


def test_a_tuning_whose_trials_all_fail_has_no_best_settings(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text('[dpzv]\n"privacy.min_batch" = [100000]\n')
    common = ["--methods", "dpzv", "--trials", "1", "--space", "space.toml", "--set", "train.rounds=4"]
    done = cli("tune", "digits", *common, "--out", "out")
    assert done.returncode == 4, done.stderr
    assert "All trials failed, so there are no best settings" in done.stdout
    assert "privacy.min_batch=100000" in done.stderr
    assert (tmp_path / "out" / "trials.jsonl").exists()
    assert not (tmp_path / "out" / "best.toml").exists()


@pytest.mark.soak
def test_the_trials_of_a_tuning_are_parents_of_what_follows(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text('[dpzv]\n"train.eta_m" = [0.001, 0.003]\n')
    sets = [part for setting in [*SHORT, "train.rounds=4"] for part in ("--set", setting)]
    tune = ["tune", "digits", "--methods", "dpzv", "--trials", "2", "--space", "space.toml", *sets, "--out", "out"]
    # secret noise in the trials, as in the run that follows
    done = cli(*tune, "--epsilon", "1", "--set", "noise.source=exact", "--set", "head.rule=frozen")
    assert done.returncode == 0, done.stderr
    assert "count the trials as earlier runs" in done.stdout
    together = json.loads(cli("privacy", "spent", "out", "--json").stdout)
    assert 1 < together["epsilon"] < 2

    train = ["train", "out/train-dpzv.toml", "--json"]
    nothing = cli(*train, "--out", "nothing")
    assert nothing.returncode == 4
    assert "leave nothing of epsilon=1" in nothing.stderr
    assert cli(*train, "--set", "privacy.epsilon=3", "--out", "more").returncode == 0
    told = json.loads(cli("privacy", "spent", "more", "--json").stdout)
    assert told["guarantee"] is True
    assert sum("(1,294 of 1,294 records are shared)" in words for words in told["covered"]) == 2
    assert not any("choice of settings" in words for words in told["not_covered"])
    # with the records that judged the trials, the claim says that the choice is not covered
    assert cli(*train, "--set", "privacy.epsilon=3", "--set", "data.holdout=0", "--out", "all").returncode == 0
    told = json.loads(cli("privacy", "spent", "all", "--json").stdout)
    assert sum("(1,294 of 1,438 records are shared)" in words for words in told["covered"]) == 2
    assert any("choice of settings" in words for words in told["not_covered"])
    # seeded trials are no less part of what follows, which is then no guarantee
    again = cli(*tune, "--epsilon", "0.5", "--set", "head.rule=frozen")
    assert again.returncode == 0, again.stderr
    assert cli(*train, "--set", "privacy.epsilon=3", "--set", "noise.source=exact", "--out", "none").returncode == 0
    told = json.loads(cli("privacy", "spent", "none", "--json").stdout)
    assert told["guarantee"] is False
    assert "simulated noise" in told["guarantee_why"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "digits", "--methods", "vaffl"], ["vaffl", "'vafl'"]),
        (["compare", "digits", "--epsilon", "one"], ["--epsilon", "one"]),
        (["compare", "digits", "--epsilon", "0"], ["--epsilon", "above 0"]),
        (["compare", "digits", "--settings", "none.toml"], ["none.toml", "does not exist"]),
        (["compare", "digits", "--set", "train.roundz=3"], ["'train.rounds'"]),
        (["tune", "digits", "--space", "none.toml"], ["none.toml", "does not exist"]),
    ],
)
def test_bad_input_is_one_sentence_and_starts_nothing(
    cli: Cli, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = cli(*arguments)
    assert done.returncode == 2, done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    assert all(word in sentence for word in words)
    assert list(tmp_path.iterdir()) == []
