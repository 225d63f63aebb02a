"""Bad input: one sentence that helps, the documented exit code, no traceback, nothing that looks finished."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The run ended with `code` and one sentence on standard error that has all `words`."""
    assert done.returncode == code, done.stderr
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("dpzv: "), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in sentence


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "flihgts"], 2, ["flihgts", "'flights'"]),
        (["train", "missing.toml"], 2, ["missing.toml", "does not exist"]),
        (["train", "digits", "--set", "train.roundz=3"], 2, ["train.roundz", "'train.rounds'"]),
        (["train", "digits", "--set", "train.B=lots"], 2, ["train.B", "int"]),
        (["train", "digits", "--set", "train.B=100000"], 2, ["train.B", "100000", "lower"]),
        (["train", "digits", "--set", "data.name=digitz"], 2, ["digitz", "'digits'"]),
        (["train", "digits", "--set", "privacy.epsilon=0"], 2, ["privacy.epsilon", "above 0"]),
        (["train", "digits", "--set", "privacy.epsilon=-1"], 2, ["privacy.epsilon", "above 0"]),
        (["train", "digits", "--set", "privacy.delta_dp=1.5"], 2, ["privacy.delta_dp", "between 0 and 1"]),
        (["train", "digits", "--set", "privacy.C=0"], 2, ["privacy.C", "above 0"]),
        (["train", "digits", "--set", "head.rule=sgd"], 4, ["joint-zo", "frozen", "accounting=paper"]),
        (["train", "digits", "--set", "devices.start=pca"], 4, ["dp-pca", "protects=labels"]),
        (["train", "digits", "--set", "privacy.C=inf"], 4, ["finite"]),
        (["train", "digits", "--set", "train.eta_m=[0.1, 0.2]"], 2, ["train.eta_m", "2 values for 4 devices"]),
        (["train", "digits", "--set", "devices.model=tree"], 2, ["devices.model", "linear"]),
        (["train", "digits", "--set", "runtime.accelerator=cuda"], 2, ["cuda", "cpu"]),
        (["train", "digits", "--set", "runtime.kind=network"], 2, ["runtime.kind", '"network"', "dpzv server"]),
        (["train", "mnist"], 3, ["dpzv data fetch mnist"]),
        (["data", "fetch", "mnits"], 2, ["mnits", "mnist"]),
        (["data", "fetch", "mnist", "--from", "nowhere"], 3, ["nowhere"]),
        (["resume", "nowhere"], 2, ["nowhere", "no run"]),
        (["data", "describe", "nowhere.csv"], 3, ["nowhere.csv", "does not exist"]),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, tmp_path: Path, arguments: list[str], code: int, words: list[str]) -> None:
    refused(cli(*arguments), code, *words)
    assert list(tmp_path.rglob("summary.json")) == []
    assert list(tmp_path.rglob("config.toml")) == []


def test_usage_errors_exit_2(cli: Cli) -> None:
    for arguments in (["tarin", "digits"], ["train"], ["train", "digits", "--rounds", "3"]):
        done = cli(*arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_a_folder_with_a_run_is_not_overwritten(cli: Cli) -> None:
    short = ["train", "digits", "--set", "train.rounds=2", "--set", "head.refit_steps=4", "--quiet", "--out", "run"]
    assert cli(*short).returncode == 0
    refused(cli(*short), 2, "already holds a finished run")


def test_a_resume_without_its_ledger_is_refused(cli: Cli, tmp_path: Path) -> None:
    """The ledger is the budget's memory: without it nobody knows what was released."""
    assert cli("train", "digits", "--set", "train.rounds=2", "--quiet", "--out", "run").returncode == 0
    (tmp_path / "run" / "summary.json").unlink()
    for file in (tmp_path / "run").glob("ledger.sqlite*"):
        file.unlink()
    refused(cli("resume", "run"), 4, "ledger")
    assert not (tmp_path / "run" / "summary.json").exists()
    # nor is it taken for a new folder once its configuration is lost, too, and nothing is written there
    (tmp_path / "run" / "config.toml").unlink()
    again = cli("train", "digits", "--set", "train.rounds=2", "--quiet", "--out", "run")
    refused(
        again, 4, "holds metrics.jsonl, transcript.jsonl, checkpoint, weights of a run whose config.toml is missing"
    )
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_recipe_in_another_encoding_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    text = '[data]\nname = "digits"\n[train]\nrounds = 2\nB = 99999\n'
    (tmp_path / "wide.toml").write_bytes(text.encode("utf-16"))
    refused(cli("train", "wide.toml"), 2, "the recipe wide.toml must be text in UTF-8, got UTF-16; save it as UTF-8.")
    (tmp_path / "latin.toml").write_bytes(f"# é\n{text}".encode("latin-1"))
    refused(cli("train", "latin.toml"), 2, "latin.toml must be text in UTF-8, got other bytes at place 2")
    (tmp_path / "marked.toml").write_bytes(text.encode("utf-8-sig"))  # as some editors write UTF-8
    refused(cli("train", "marked.toml"), 2, "train.B", "99999")


@pytest.mark.parametrize("junk", [b"\xed\x00\xff" * 50, b"train = 3\n", b"[train\n", "[train]".encode("utf-16")])
def test_a_resume_with_a_damaged_configuration_is_one_sentence(cli: Cli, tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_bytes(junk)
    refused(cli("resume", "run"), 2, "run/config.toml must be what the run was started with", "start a new run")


@pytest.mark.parametrize(
    "arguments",
    [
        ["privacy", "spent", "nowhere"],
        ["privacy", "close", "nowhere"],
        ["train", "digits", "--set", 'privacy.parents=["nowhere"]', "--quiet"],
    ],
)
def test_a_folder_without_a_run_is_said_to_be_none(cli: Cli, tmp_path: Path, arguments: list[str]) -> None:
    """Nothing was lost there, so no run is told that it cannot go on."""
    for folder in (None, tmp_path / "nowhere"):
        if folder is not None:
            folder.mkdir()
        done = cli(*arguments)
        refused(done, 4, "nowhere", "must be the ledger of a run, but there is none; give the folder of a run")
        assert "cannot go on" not in done.stderr


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_one_sentence(cli: Cli, tiny_disk: Path) -> None:
    done = cli("train", "flights", "--set", "train.rounds=3", "--quiet", "--out", str(tiny_disk / "run"))
    refused(done, 6, "could not be written")
    assert not (tiny_disk / "run" / "summary.json").exists()


def test_an_unwritable_folder_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    refused(cli("train", "digits", "--quiet", "--out", "file/run"), 6, "could not be written")


def test_internal_errors_show_a_traceback_only_with_debug() -> None:
    code = "import sys; import dpzv.cli.main; m = sys.modules['dpzv.cli.main']; m.app = lambda: 1 / 0; m.main()"
    done = subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "--debug" in done.stderr
    done = subprocess.run([sys.executable, "-c", code, "x", "--debug"], capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in done.stderr
    assert "Traceback" in done.stderr
