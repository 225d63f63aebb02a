"""`dpzv rehearse`, and the other commands with the parties' own files in place of a recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from dpzv import config as configuration
from dpzv.attacks.target import target_of
from dpzv.cli.options import tree_of
from dpzv.cli.rehearse_command import suspicions
from dpzv.config import Config
from dpzv.data.alignment import Fewest
from dpzv.errors import DataError
from dpzv.network.alignment_state import AlignmentState, digest_of
from dpzv.network.keyfiles import create_authority, issue_party
from dpzv.network.party import load_party
from dpzv.privacy.noise import SeededNoise
from dpzv.runtime import compute_cost, grid
from dpzv.runtime.in_turn import run_in_turn
from dpzv.runtime.rehearsal import KEY, rehearsed, rehearsed_tree
from dpzv.runtime.run import load_data
from dpzv.runtime.run_plan import plan_of
from tests.cli.conftest import Cli
from tests.first_run import FILES, write_files

SHORT = [
    word
    for setting in ("train.rounds=6", "head.rule=frozen", "head.refit_steps=10", "runtime.threads=1")
    for word in ("--set", setting)
]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in a folder with the files of the page, and has a state folder of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)


def ids_of(name: str) -> set[str]:
    return set(pd.read_csv(f"{name}.csv")["customer"])


def parsed(*sets: str) -> Config:
    """What the commands make of the files and of --set."""
    return configuration.parse(tree_of(list(FILES), list(sets)))


def test_a_rehearsal_counts_trains_and_predicts_and_leaves_nothing_for_the_real_run(cli: Cli, tmp_path: Path) -> None:
    done = cli("rehearse", *FILES, *SHORT, "--out", "first")
    assert done.returncode == 0, done.stderr
    assert "a look at them by whoever runs it" in done.stdout
    assert "simulated noise" in done.stdout
    labels, bank, shop = map(ids_of, ("labels", "bank", "shop"))
    shared = labels & bank & shop
    tested = round(0.2 * len(shared))
    for name, own in (("the server", labels), ("bank", bank), ("shop", shop)):
        assert [name, str(len(own)), str(len(own & labels))] in [
            [line[:10].strip(), *line[10:].split()] for line in done.stdout.splitlines()
        ]
    assert f"share {len(shared)} records: {len(shared) - tested} to train on, {tested} to test on" in done.stdout
    for row in ("untrained devices", "bank alone", "shop alone", "dpzv, all parties"):
        assert f"\n{row}  " in done.stdout

    assert re.search(
        r"^Rounds of each device: bank: 3(?: \([^)]*\))?, shop: 3(?: \([^)]*\))?$", done.stdout, re.MULTILINE
    )

    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    assert summary["guarantee"] is False
    predictions = pd.read_csv("first/predictions.csv", index_col="id")["prediction"]
    assert len(predictions) == tested
    assert set(predictions.index) <= shared
    truth = pd.read_csv("labels.csv", index_col="customer")["outcome"].loc[predictions.index] == "default"
    assert roc_auc_score(truth, predictions) == pytest.approx(summary["test_auc"], abs=1e-4)
    # no note that a real run would find, nothing in the parties' own folders
    assert not (tmp_path / "state").exists()
    assert not any((tmp_path / name).exists() for name in ("server", "bank", "shop"))


@pytest.mark.parametrize("task", ["regression", "classes"])
def test_predictions_are_in_the_words_of_the_labels(cli: Cli, task: str) -> None:
    labels = pd.read_csv("labels.csv")
    debts = pd.read_csv("bank.csv", index_col="customer")["debt"].reindex(labels["customer"]).fillna(25_000).to_numpy()
    classes = ["low", "middle", "high"]
    means = {"regression": "low = 0\nhigh = 50000", "classes": f"classes = {json.dumps(classes)}"}[task]
    values = debts if task == "regression" else np.array(classes)[(debts // 20_000).astype(int)]
    labels.assign(outcome=values).to_csv("labels.csv", index=False)
    server = Path("server.toml")
    kept = [line for line in server.read_text().splitlines() if not line.startswith(("task", "classes"))]
    server.write_text("\n".join([*kept, f'task = "{task}"', means]))
    settings = ["--set", "train.rounds=0", "--set", "head.rule=frozen", "--set", "head.refit_steps=60"]
    done = cli("rehearse", *FILES, *settings, "--out", "first", "--quiet")
    assert done.returncode == 0, done.stderr
    found = pd.read_csv("first/predictions.csv", index_col="id")["prediction"]
    truth = pd.Series(values, index=labels["customer"]).loc[found.index]
    if task == "regression":
        assert np.corrcoef(found, truth)[0, 1] > 0.9
        assert abs(found.mean() - truth.mean()) < 2000
        rmse = json.loads(Path("first/summary.json").read_text())["test_rmse"]
        assert rmse == pytest.approx(float(np.sqrt(((found - truth) ** 2).mean())), rel=1e-3)
    else:
        accuracy = json.loads(Path("first/summary.json").read_text())["test_accuracy"]
        assert (found == truth).mean() == pytest.approx(accuracy, abs=1e-6)
        assert accuracy > 0.7


def test_the_records_are_those_of_a_real_run_under_the_same_key(tmp_path: Path) -> None:
    create_authority(tmp_path / "ca", 20)
    (tmp_path / "ca" / "alignment.key").write_text(KEY.hex() + "\n")
    for name in ("server", "bank", "shop"):
        issue_party(tmp_path / "ca", name, tmp_path / name / "keys", None, 10)
    server = load_party(Path("server.toml"))
    state = AlignmentState(tmp_path, server.labels(), 2, server.config.data.holdout, Fewest())
    features = [load_party(Path(f"{name}.toml")).features() for name in ("bank", "shop")]
    for m, own in enumerate(features, 1):
        state.take(m, own.hashes, digest_of(m, own.hashes))
    state.settle()
    found, real = rehearsed(parsed()), state.records()
    assert state.counts == found.found.counts()
    np.testing.assert_array_equal(found.data.y_train, real.y_train)
    np.testing.assert_array_equal(found.data.y_test, real.y_test)
    for m, own in enumerate(features, 1):
        rows, numbers = state.rows(m)
        both = np.concatenate([found.data.x_train[m - 1], found.data.x_test[m - 1]])
        np.testing.assert_array_equal(both, own.x[numbers])
        assert rows.train == len(found.data.y_train)


def test_train_takes_the_same_files_and_makes_the_same_run(cli: Cli, tmp_path: Path) -> None:
    assert cli("rehearse", *FILES, *SHORT, "--out", "first", "--quiet").returncode == 0
    done = cli("train", *FILES, *SHORT, "--set", "noise.source=seeded", "--out", "trained", "--quiet")
    assert done.returncode == 0, done.stderr
    same = [(tmp_path / folder / "transcript.jsonl").read_bytes() for folder in ("first", "trained")]
    assert same[0] == same[1]
    assert len(same[0].splitlines()) == 6
    # what an interrupted run and the runs of `compare` do: read the configuration and the records again
    (tmp_path / "trained" / "summary.json").unlink()
    config = configuration.parse(configuration.merge(tree_of(["trained/config.toml"], []), {}))
    np.testing.assert_array_equal(load_data(config).y_train, rehearsed(parsed()).data.y_train)
    (tmp_path / "bank.csv").write_text((tmp_path / "bank.csv").read_text().replace("retired", "employed"))
    changed = cli("resume", "trained")
    assert changed.returncode == 2
    assert "files were other ones when this run began" in changed.stderr


def test_a_holdout_for_tuning_takes_no_agreed_test_record() -> None:
    whole, part = load_data(parsed()), load_data(parsed("data.holdout=0.1"))
    rows = [{row.tobytes() for row in np.hstack(xs)} for xs in (whole.x_train, whole.x_test, part.x_train, part.x_test)]
    assert rows[2] | rows[3] == rows[0]
    assert not rows[3] & rows[1]
    assert len(part.y_test) == round(0.1 * len(whole.y_train))


def test_a_rehearsal_shows_what_is_odd_about_each_partys_values() -> None:
    found = rehearsed(parsed()).odd
    assert not found["the server"]
    assert any("'income'" in sentence and "clipped" in sentence for sentence in found["bank"])
    assert any("'channel'" in sentence and "'fax'" in sentence for sentence in found["shop"])


def test_a_party_whose_columns_are_mixed_is_named() -> None:
    narrow, wide = (rehearsed(parsed(f"devices.embedding={numbers}")).odd for numbers in ("[4, 6]", "64"))
    mixed = [name for name in narrow for sentence in narrow[name] if "random mixtures" in sentence]
    assert mixed == ["bank"]  # both have 6 encoded columns
    assert "6 encoded columns become 4 numbers a record" in narrow["bank"][-1]
    assert "devices.embedding = 6 would keep them all" in narrow["bank"][-1]
    assert not any("mixtures" in sentence for sentences in wide.values() for sentence in sentences)


def test_earlier_runs_of_the_server_count_in_a_rehearsal(cli: Cli) -> None:
    assert cli("train", *FILES, *SHORT, "--out", "earlier", "--quiet").returncode == 0
    server = Path("server.toml")
    server.write_text('parents = ["earlier"]\n' + server.read_text())
    assert parsed().privacy.parents == (str(Path("earlier").resolve()),)
    done = cli("rehearse", *FILES, *SHORT, "--out", "later")
    assert done.returncode == 4, done.stdout  # the earlier run has claimed the whole budget


def test_an_audit_is_of_the_run_it_is_given(cli: Cli) -> None:
    alone = cli("audit", "run.toml")
    assert alone.returncode == 2
    assert "run.toml is a run that parties agreed on, and says nothing about their records" in alone.stderr
    Path("nothing.toml").write_text("[train]\nrounds = 2\n")
    for command in ("audit", "train", "compare"):
        assert "nothing.toml names no data set" in cli(command, "nothing.toml").stderr
    target = target_of(parsed("head.batch=388"), SeededNoise(0))
    shared = len(ids_of("labels") & ids_of("bank") & ids_of("shop"))
    assert (target.task, target.M) == ("binary", 2)
    assert target.q == 388 / (shared - round(0.2 * shared))
    done = cli("audit", *FILES, *SHORT, "--trials", "20", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["claim"] == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("run.toml",), "expected the file of the agreed run, then those of the server and of every device"),
        (("server.toml", "run.toml", "bank.toml"), "the first file must be the agreed run, got the file of a party"),
        (
            ("run.toml", "server.toml", "bank.toml"),
            "each of the devices bank, shop, got server.toml (the server), bank",
        ),
        (("run.toml", "bank.toml", "bank.toml", "shop.toml"), "give every party's file once"),
        ((*FILES[:3], "gone.toml"), "gone.toml cannot be read"),
    ],
)
def test_files_that_are_no_cast_are_refused(cli: Cli, tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    done = cli("rehearse", *given, "--out", "none")
    assert done.returncode in (2, 3)
    assert says in done.stderr
    assert not (tmp_path / "none").exists()


def test_what_a_real_run_would_refuse_is_refused(cli: Cli, tmp_path: Path) -> None:
    def refused(*sets: str) -> str:
        done = cli("rehearse", *FILES, *SHORT, *sets, "--out", "none")
        assert done.returncode in (2, 3), done.stdout
        assert not (tmp_path / "none").exists()
        return done.stderr

    text = {name: Path(name).read_text() for name in FILES}
    Path("run.toml").write_text(text["run.toml"].replace("holdout = 0.2", "holdout = 0.0"))
    assert "data.holdout, the share of records that are tested on, must be above 0" in refused()
    Path("run.toml").write_text(text["run.toml"].replace("B = 512", "B = 1024"))
    assert "train.B = 1024 with data.holdout = 0.2 needs at least 1280 records that all parties share" in refused()
    Path("run.toml").write_text(text["run.toml"])
    assert "train.B = 9999 with data.holdout = 0.2 needs at least" in refused("--set", "train.B=9999")
    assert "privacy.min_batch = 9999 with data.holdout" in refused("--set", "privacy.min_batch=9999")
    Path("other.toml").write_text(text["run.toml"].replace("epsilon = 1", "epsilon = 2"))
    Path("shop.toml").write_text(text["shop.toml"].replace('"run.toml"', '"other.toml"'))
    assert "with privacy.epsilon = 1.0, got 2.0 in other.toml, which shop.toml names" in refused()
    Path("shop.toml").write_text(text["shop.toml"].replace("shop.csv", "gone.csv"))
    assert "gone.csv should be a party's data file, but it does not exist" in refused()
    Path("shop.toml").write_text(text["shop.toml"].split("[data.features]")[0])
    assert "a party's [data] has neither features nor labels" in refused()


@pytest.mark.parametrize("inside", ["", "alone-1"])
def test_a_folder_in_use_is_refused_before_anything_is_read(cli: Cli, tmp_path: Path, inside: str) -> None:
    (tmp_path / "used" / inside).mkdir(parents=True)
    (tmp_path / "used" / inside / "config.toml").write_text("")
    Path("shop.csv").unlink()
    done = cli("rehearse", *FILES, *SHORT, "--out", "used")
    assert done.returncode == 2
    assert "dpzv: used already holds" in done.stderr
    assert "alone" not in done.stderr


def keep_rows(count: int) -> None:
    """Leave each party the same customers, so that all share `count` of them."""
    shared = sorted(ids_of("labels") & ids_of("bank") & ids_of("shop"))[:count]
    for name in ("labels", "bank", "shop"):
        table = pd.read_csv(f"{name}.csv")
        table[table["customer"].isin(shared)].to_csv(f"{name}.csv", index=False)


def test_a_batch_of_few_records_is_what_was_set_or_else_what_fits() -> None:
    keep_rows(200)
    with pytest.raises(DataError, match=r"train.B = 512 with data.holdout = 0.2 needs at least 640 .* got 200"):
        load_data(parsed())
    data = load_data(parsed("train.B=100"))
    assert plan_of(parsed("train.B=100"), len(data.y_train), 2).B == 100
    run = Path("run.toml")
    run.write_text("".join(line for line in run.read_text().splitlines(True) if not line.startswith("B =")))
    assert parsed().train.B is None
    assert (len(load_data(parsed()).y_train), plan_of(parsed(), 160, 2).B) == (160, 160)
    assert plan_of(parsed(), 5000, 2).B == 512


def test_where_nothing_is_released_a_handful_of_records_is_enough(cli: Cli) -> None:
    keep_rows(40)
    with pytest.raises(DataError, match=r"privacy.min_batch = 64 .* lower privacy.min_batch, or set train.rounds = 0"):
        load_data(parsed("train.B=30"))
    shop = pd.read_csv("shop.csv")
    others = shop.assign(customer=shop["customer"].str.upper()), shop.assign(customer=shop["customer"] + "x")
    pd.concat([shop, *others]).to_csv("shop.csv", index=False)
    done = cli("rehearse", *FILES, *SHORT, "--set", "train.rounds=0", "--out", "few")
    assert done.returncode == 0, done.stderr
    assert "Only 8 records are tested on, so all test figures are rough." in done.stdout
    assert "shop: 80 of its 120 ids, more than half, are unknown to the server; compare how both write" in done.stdout
    assert "\nbank: 0 of its" not in done.stdout
    assert "\nRounds of each device: bank: 0, shop: 0\n" in done.stdout


def test_a_party_that_alone_knows_all_labels_is_suspected() -> None:
    figures = {"test_accuracy": None, "test_auc": None, "test_loss": 0.1, "test_r2": None, "test_rmse": 1.0}
    summaries = {
        "bank alone": {**figures, "test_auc": 0.9991},
        "shop alone": {**figures, "test_auc": 0.998},
        "post alone": {**figures, "test_accuracy": 1.0},
        "town alone": {**figures, "test_r2": 0.9995},
        "road alone": {**figures, "test_loss": 1.2},
        "": {**figures, "test_auc": 1.0},
    }
    found = suspicions(summaries)
    assert [sentence.split(" alone")[0] for sentence in found] == ["bank", "post", "town"]
    assert "reaches AUC 0.9991: perhaps one of its columns is the label" in found[0]


def test_an_agreed_run_may_say_that_it_is_between_parties_and_a_simulation_may_not(cli: Cli) -> None:
    agreed = Path(FILES[0])
    assert "[runtime]" not in agreed.read_text()
    agreed.write_text(agreed.read_text() + '\n[runtime]\nkind = "network"\n')
    assert cli("rehearse", *FILES, *SHORT, "--out", "first", "--quiet").returncode == 0
    done = cli("rehearse", *FILES, *SHORT, "--set", "runtime.kind=network", "--out", "none")
    assert (done.returncode, Path("none").exists()) == (2, False)
    assert 'here, got "network"' in done.stderr


def test_another_file_is_another_run() -> None:
    """Runs of `compare` are found by their configuration, so it must change with the parties' files."""
    names = [rehearsed_tree(FILES)["data"]["name"]]
    for name, old, new in (("shop.toml", "high = 100", "high = 90"), ("bank.csv", "retired", "self-employed")):
        Path(name).write_text(Path(name).read_text().replace(old, new))
        names.append(rehearsed_tree(FILES)["data"]["name"])
    assert len(set(names)) == 3


def test_compare_and_tune_take_the_files_in_one_process(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the soak does in processes of their own, which take most of its time; a clock takes no measuring here."""

    def measured(works: dict[str, Config], _: object) -> dict[str, object]:
        return {
            "seconds": dict.fromkeys(works, 1.0),
            "D": 700,
            "M": 2,
            "bytes": 1,
            "accelerator_share": 0.0,
            "cuda": False,
        }

    monkeypatch.setattr(compute_cost, "_in_a_child", measured)
    monkeypatch.setattr(grid, "run", lambda jobs, out, _, watch: run_in_turn(jobs, out, watch))
    keep_rows(700)
    common = ["--methods", "dpzv", *SHORT, "--set", "noise.source=seeded", "--jobs", "1", "--json"]
    compared = cli("compare", *FILES, *common, "--seeds", "1", "--out", "compared")
    assert compared.returncode == 0, compared.stderr
    assert [row["method"] for row in json.loads(compared.stdout)["rows"]] == ["untrained", "dpzv"]
    Path("space.toml").write_text('[dpzv]\n"train.eta_m" = [0.001]\n')
    tuned = cli("tune", *FILES, *common, "--set", "train.B=400", "--space", "space.toml", "--trials", "1", "--out", "t")
    assert tuned.returncode == 0, tuned.stderr
    assert [(trial["settings"], trial["failure"]) for trial in json.loads(tuned.stdout)] == [
        ({"train.eta_m": 0.001}, "")
    ]


@pytest.mark.soak
def test_compare_and_tune_take_the_files(cli: Cli, tmp_path: Path) -> None:
    common = ["--methods", "dpzv", *SHORT, "--set", "noise.source=seeded", "--jobs", "1"]
    compared = cli("compare", *FILES, *common, "--seeds", "1", "--out", "compared", "--json")
    assert compared.returncode == 0, compared.stderr
    assert [row["method"] for row in json.loads(compared.stdout)["rows"]] == ["untrained", "dpzv"]
    widths = ["compare", *FILES, *SHORT, "--set", "noise.source=seeded", "--widths", "2", "--seeds", "1", "--jobs", "1"]
    wide = cli(*widths, "--out", "widths", "--json")
    assert wide.returncode == 0, wide.stderr
    assert {row["party"] for row in json.loads(wide.stdout)["rows"]} >= {"bank", "shop"}
    (tmp_path / "space.toml").write_text('[dpzv]\n"train.eta_m" = [0.001, 0.003]\n')
    tuned = cli("tune", *FILES, *common, "--space", "space.toml", "--trials", "2", "--out", "tuned", "--json")
    assert tuned.returncode == 0, tuned.stderr
    assert "2 trials may spend epsilon 1 each on the same records" in tuned.stderr
    going_on = cli("train", "tuned/train-dpzv.toml", "--out", "last", "--json")
    assert going_on.returncode == 4, going_on.stderr  # the trials have claimed the whole budget
