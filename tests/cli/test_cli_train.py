"""What the commands print and leave behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main
from typer.testing import CliRunner

from dpzv import __version__
from dpzv.cli.main import app
from tests.cli.conftest import Cli

SUMMARY_KEYS = """
schema recipe method head_rule rounds seconds virtual_seconds test_accuracy test_auc test_r2 test_rmse bytes_up
bytes_down bytes_initial bytes_eval payload_bytes targets epsilon epsilon_zero_out epsilon_replace_one delta_dp mu
sigma_dp accounting neighbours protects noise_source guarantee guarantee_why mean_delay max_delay participation seed
versions data
""".split()
METRIC_KEYS = """
round seconds virtual_seconds test_accuracy test_auc test_loss test_r2 test_rmse bytes_up bytes_down epsilon_spent
mean_delay
""".split()
QUICK = ["--set", "head.refit_steps=4"]
"""For tests that are not about the final head."""
FILES = ["config.toml", "ledger.sqlite", "metrics.jsonl", "summary.json", "transcript.jsonl"]


@pytest.mark.parametrize("shown", [(), ("--quiet",), ("--json",)])
def test_a_result_that_is_not_finite_is_no_success(cli: Cli, shown: tuple[str, ...]) -> None:
    """A head whose steps are far too large diverges; the run is kept, and the command says that it failed."""
    steps = ("head.rule=sgd", "head.eta_0=1e30", "head.final=private", "privacy.epsilon=inf", "train.rounds=8")
    settings = [word for step in steps for word in ("--set", step)]
    done = cli("train", "breast-cancer", *settings, *shown, "--out", "run")
    assert done.returncode == 2
    assert "test loss must be finite" in done.stderr
    assert cli("resume", "run", "--quiet").returncode == 2


def test_each_party_alone_and_wide_untrained_devices_stand_beside_a_run(cli: Cli, tmp_path: Path) -> None:
    short = ("train.rounds=6", "head.rule=frozen", "head.refit_steps=20", "devices.embedding=2", "noise.source=seeded")
    settings = [word for part in short for word in ("--set", part)]
    done = cli("train", "breast-cancer", *settings, "--beside", "frozen,frozen=5,alone", "--out", "run")
    assert done.returncode == 0, done.stderr
    table = done.stdout.split("\n\n")[0].splitlines()
    names = ["untrained devices", "untrained, width 5", "mean alone", "error alone", "worst alone", "dpzv, all parties"]
    folders = ["frozen", "frozen-5", "alone-1", "alone-2", "alone-3", ""]
    assert len(table) == 1 + len(names)
    found = [json.loads((tmp_path / "run" / folder / "summary.json").read_text()) for folder in folders]
    for line, name, summary in zip(table[1:], names, found, strict=True):
        assert line.startswith(f"{name}  ")
        assert f"AUC {summary['test_auc']:.4f}" in line
    assert [summary["rounds"] for summary in found] == [0, 0, 6, 6, 6, 6]
    assert [len(summary["participation"]) for summary in found] == [3, 3, 1, 1, 1, 3]
    narrow, wide = found[0]["payload_bytes"], found[1]["payload_bytes"]
    assert wide * 2 == narrow * 5  # one upload of all records, and nothing else
    adding = ("--set", "train.rounds=2", "--set", "noise.source=seeded", "--set", "head.refit_steps=4")
    wide = cli("train", "breast-cancer-scorecard", *adding, "--beside", "frozen=5", "--out", "sum")
    assert wide.returncode == 0, wide.stderr  # wide embeddings cannot be added, and have a refitted head
    refused = cli("train", "breast-cancer", "--beside", "frozen=wide", "--out", "none")
    assert refused.returncode == 2
    assert "--beside takes frozen, frozen=WIDTH and alone, got 'frozen=wide'" in refused.stderr
    assert not (tmp_path / "none").exists()


def test_a_run_leaves_what_the_contract_says(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", "breast-cancer", "--set", "train.rounds=60", *QUICK, "--out", "run", "--beside", "frozen")
    assert done.returncode == 0, done.stderr
    for words in (
        "AUC",
        "MB",
        "seconds",
        "untrained devices",
        "Privacy statement",
        "Guarantee:   yes",
        "Rounds of each",
        "Final head: ",
        "Run folder: run",
        "Report page: run/report.html",
    ):
        assert words in done.stdout
    for folder in (tmp_path / "run", tmp_path / "run" / "frozen"):
        assert [f for f in FILES if not (folder / f).is_file()] == []
        weights = sorted(f.name for f in (folder / "weights").iterdir())
        assert weights == [*(f"device-{m}.safetensors" for m in (1, 2, 3)), "final.safetensors", "server.safetensors"]
    assert '"name":"run/frozen"' in (tmp_path / "run" / "report.html").read_text()  # with the run beside it
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [key for key in SUMMARY_KEYS if key not in summary] == []
    assert summary["guarantee"] is True
    assert sum(one["rounds"] for one in summary["participation"]) == 60
    assert "secret noise" in summary["guarantee_why"]
    head = summary["final_head"]
    assert head["name"] in head["losses"]
    assert (head["records"], head["folds"]) == (summary["data"]["records"], 5)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 50, 60]
    assert sorted(lines[0]) == sorted(METRIC_KEYS)
    transcript = [json.loads(line) for line in (tmp_path / "run" / "transcript.jsonl").read_text().splitlines()]
    assert [line["t"] for line in transcript] == list(range(1, 61))
    assert set(transcript[0]) == {"t", "m", "Delta", "frame_xxh3"}
    frozen = json.loads((tmp_path / "run" / "frozen" / "summary.json").read_text())
    assert (frozen["epsilon"], frozen["rounds"]) == (0.0, 0)


def test_untrained_devices_stand_beside_every_run(cli: Cli, tmp_path: Path) -> None:
    """They are what a run without rounds gives, without such a run; steps that are far too short add nothing.

    There is no such row without a fill, with a private head, or where all first embeddings are alike.
    """
    common = ("noise.source=seeded", "head.refit_steps=40", "devices.embedding=1")
    runs = {
        "idle": ("train.rounds=6", "train.eta_m=1e-12", "head.rule=frozen"),
        "none": ("train.rounds=0", "head.rule=dp-sgd"),
        "trained": ("train.rounds=200", "privacy.epsilon=inf"),
        "empty": ("train.rounds=6", "table.start=zeros"),
        "private": ("train.rounds=6", "head.final=private"),
        "alike": ("train.rounds=6", "head.model=sum", "head.rule=frozen", "devices.start=dp-whiten"),
    }
    told, found = {}, {}
    for name, own in runs.items():
        done = cli("train", "breast-cancer", *(f"--set={part}" for part in (*common, *own)), "--out", name)
        assert done.returncode == 0, done.stderr
        told[name], found[name] = done.stdout, json.loads((tmp_path / name / "summary.json").read_text())
    before, alone = found["idle"]["untrained"], found["none"]
    for key in ("test_auc", "test_accuracy", "test_loss", "bytes_up", "final_head"):
        assert before[key] == alone[key], key
    assert [found[name]["untrained"] is None for name in runs] == [False, True, False, True, True, True]
    assert f"untrained devices  AUC {before['test_auc']:.4f}  not trained        0" in told["idle"]
    assert f"dpzv               AUC {before['test_auc']:.4f}  not trained        6" in told["idle"]  # a frozen head
    assert told["none"].count("untrained devices") == told["none"].count("not trained") == 1
    assert found["trained"]["test_auc"] > found["trained"]["untrained"]["test_auc"]
    assert ["Training added nothing" in told[name] for name in runs] == [True, False, False, False, False, False]
    assert [(tmp_path / name / "checkpoint" / "untrained.safetensors").exists() for name in runs] == [False] * 6


def test_a_weak_delta_is_warned_of_before_anything_is_spent(cli: Cli, tmp_path: Path) -> None:
    """No round is begun, so nothing was spent when the warning came; `--quiet` means errors only."""
    weak = ["--set", "privacy.delta_dp=0.01", "--set", "train.rounds=100000", *QUICK]
    weak += ["--set", "train.eval_every=100000"]
    done = cli("train", "breast-cancer", *weak, "--set", "noise.source=seeded", "--max-seconds", "0", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 0
    assert "delta_dp = 0.01 is above 1/D = 0.0022, so the claim would allow one" in " ".join(done.stderr.split())
    quiet = cli("train", "breast-cancer", *weak, "--max-seconds", "0", "--out", "again", "--quiet")
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_json_prints_the_summary_and_nothing_else(cli: Cli) -> None:
    done = cli("train", "breast-cancer", "--set", "train.rounds=2", *QUICK, "--out", "run", "--json")
    summary = json.loads(done.stdout)
    assert summary["rounds"] == 2
    assert json.loads(cli("resume", "run", "--json").stdout) == summary


def test_bytes_add_up_to_the_frames(cli: Cli) -> None:
    """payload <= frames <= payload + a few bytes a frame; the first fill is part of up; evaluation is apart."""
    arguments = ["--set", "train.rounds=30", "--set", "train.B=100", "--set", "privacy.min_batch=10", *QUICK, "--json"]
    summary = json.loads(cli("train", "breast-cancer", *arguments, "--out", "a").stdout)
    records, width = 455 if summary["data"]["records"] == 455 else summary["data"]["records"], 6
    fill = 3 * records * width * 4
    rounds = 30 * 2 * 100 * width * 4
    assert summary["payload_bytes"] == fill + rounds + 30 * 8
    frames = summary["bytes_up"] + summary["bytes_down"]
    assert 0 < frames - summary["payload_bytes"] < 64 * (3 + 2 * 30)
    assert fill < summary["bytes_initial"] < fill + 3 * 64
    half = json.loads(cli("train", "breast-cancer", *arguments, "--set", "codec.name=float16", "--out", "b").stdout)
    assert half["bytes_up"] < 0.52 * summary["bytes_up"]
    assert summary["bytes_eval"] > 0


@pytest.mark.parametrize("rule", ["frozen", "joint-zo", "sgd", "zo"])
def test_every_head_rule_runs(cli: Cli, rule: str) -> None:
    arguments = ["--set", f"head.rule={rule}", "--set", "privacy.accounting=paper", "--set", "train.rounds=9", *QUICK]
    done = cli("train", "breast-cancer", *arguments, "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["head_rule"] == rule
    assert "not a guarantee" in summary["guarantee_why"]


def test_a_private_head_runs_with_and_without_rounds(cli: Cli) -> None:
    common = ["--set", "head.rule=dp-sgd", "--set", "head.steps=5", "--set", "head.batch=100", *QUICK, "--json"]
    with_rounds = json.loads(cli("train", "breast-cancer", *common, "--set", "train.rounds=9", "--out", "a").stdout)
    assert (with_rounds["head_rule"], with_rounds["guarantee"], with_rounds["epsilon"]) == ("dp-sgd", True, 5.0)
    without = [*common, "--set", "train.rounds=0", "--set", "head.final=private"]
    assert json.loads(cli("train", "breast-cancer", *without, "--out", "b").stdout)["epsilon"] == 5.0
    # a head that is refitted at home needs no private one, and without rounds nothing is released
    stays = json.loads(cli("train", "breast-cancer", *common, "--set", "train.rounds=0", "--out", "c").stdout)
    assert stays["epsilon"] == 0.0


@pytest.mark.parametrize("start", ["pca", "dp-pca"])
def test_starts_from_features_run_where_they_are_allowed(cli: Cli, start: str) -> None:
    arguments = ["--set", f"devices.start={start}", "--set", "train.rounds=6", "--set", "train.passes=1", *QUICK]
    done = cli("train", "breast-cancer", *arguments, "--set", "privacy.protects=labels", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr


def test_seeded_noise_is_no_guarantee(cli: Cli) -> None:
    arguments = ["--set", "noise.source=seeded", "--set", "train.rounds=3", *QUICK, "--json", "--out", "run"]
    summary = json.loads(cli("train", "breast-cancer", *arguments).stdout)
    assert summary["guarantee"] is False
    assert "simulated noise" in summary["guarantee_why"]


def test_no_privacy_is_said_plainly(cli: Cli) -> None:
    arguments = ["--set", "privacy.epsilon=inf", "--set", "privacy.C=inf", "--set", "train.rounds=3", *QUICK]
    summary = json.loads(cli("train", "breast-cancer", *arguments, "--out", "run", "--json").stdout)
    assert summary["epsilon"] is None
    assert summary["sigma_dp"] == 0
    assert "no privacy was asked for" in summary["guarantee_why"]


def test_lists(cli: Cli) -> None:
    assert cli("--version").stdout.strip() == f"dpzv {__version__}"
    listed = cli("recipes").stdout
    for name in ("flights", "digits", "breast-cancer", "mnist"):
        assert name in listed
        assert name in cli("data", "list").stdout
    assert "rounds" in cli("recipes", "mnist").stdout
    assert set(json.loads(cli("recipes", "--json").stdout)) >= {"flights", "mnist"}


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, those of groups included."""
    if not isinstance(group, click.Group):
        yield path
        return
    for name, command in group.commands.items():
        yield from commands(command, (*path, name))


def test_every_help_page_has_an_example_and_no_markup() -> None:
    found = list(commands(typer.main.get_command(app)))
    assert ("compare",) in found
    assert ("keys", "issue") in found
    for path in found:
        shown = CliRunner().invoke(app, [*path, "--help"]).output
        assert "Example: dpzv" in shown, path
        assert "\\" not in shown, path
