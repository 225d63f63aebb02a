"""The calculator: its figures, its keys, and how little it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

QUICK = ("--set", "head.refit_steps=4")
"""The final head does not matter here."""

PLAN = ["privacy", "plan", "--delta", "1e-3", "--records", "60000", "--passes", "10", "--devices", "7", "--json"]

# delta 1e-3, D = 60,000, replace-one: what the paper's epsilon is for devices that know the batches, at least
COUNTED = {
    0.1: (6.41211, 4.12035, 1.75816, 0.767499, 0.1),
    0.5: (41.761, 24.7757, 9.38041, 3.83214, 0.5),
    1: (106.576, 60.4933, 21.0866, 8.09661, 1),
    5: (1121.21, 588.539, 170.708, 54.1873, 5),
    10: (3074.94, 1585.25, 436.801, 129.134, 10),
}


@pytest.mark.parametrize("epsilon", COUNTED)
def test_the_papers_epsilon_counted_truly(cli: Cli, epsilon: float) -> None:
    for B, expected in zip((64, 128, 512, 2048, 60_000), COUNTED[epsilon], strict=True):
        done = cli(*PLAN, "--epsilon", str(epsilon), "--batch", str(B), "--accounting", "paper")
        counted = json.loads(done.stdout)["epsilon_counted"]
        assert float(f"{counted:.6g}") == expected, B  # to the digits printed


def test_convert_gives_the_third_of_three(cli: Cli) -> None:
    for given in (["--epsilon", "1", "--delta", "1e-5"], ["--mu", "0.268051123211", "--delta", "1e-5"]):
        values = json.loads(cli("privacy", "convert", *given, "--json").stdout)
        assert set(values) == {"mu", "epsilon", "delta_dp"}
        assert values["mu"] == pytest.approx(0.268051123211, rel=1e-9)
        assert values["epsilon"] == pytest.approx(1, rel=1e-9)
    found = json.loads(cli("privacy", "convert", "--mu", "0.268051123211", "--epsilon", "1", "--json").stdout)
    assert found["delta_dp"] == pytest.approx(1e-5, rel=1e-8)
    assert cli("privacy", "convert", "--mu", "1").returncode == 2
    assert cli("privacy", "convert", "--mu", "-1", "--delta", "0.1").returncode == 2


def test_a_plan_has_the_promised_keys_and_the_closed_form(cli: Cli) -> None:
    done = cli(*PLAN, "--epsilon", "1", "--batch", "512")
    values = json.loads(done.stdout)
    keys = {"sigma_dp", "mu", "epsilon", "delta_dp", "parts", "paper_sigma_dp", "paper_epsilon"}
    assert keys <= set(values)
    P = values["participations"]
    assert values["sigma_dp"] == pytest.approx(2 * P**0.5 / (512 * values["mu"]), rel=1e-9)
    assert values["paper_epsilon"] < 0.1 * values["epsilon"]
    assert values["paper_sigma_dp"] < values["sigma_dp"]


def test_a_plan_with_a_sampled_head_and_a_sweep(cli: Cli) -> None:
    head = ["--epsilon", "1", "--batch", "4096", "--head", "dp-sgd", "--head-batch", "4096", "--head-steps", "100"]
    values = json.loads(cli(*PLAN, *head).stdout)
    assert [part["name"] for part in values["parts"]] == ["releases", "head"]
    assert values["z"] > 0
    rows = json.loads(cli(*PLAN, "--epsilon", "1", "--batch", "4096", "--sweep").stdout)
    assert len(rows) == 15
    text = cli(*[word for word in PLAN if word != "--json"], "--epsilon", "1", "--batch", "4096", "--sweep").stdout
    assert "noise_over_clip" in text.splitlines()[0]


@pytest.mark.parametrize("head", ["frozen", "dp-sgd"])
def test_a_printed_plan_has_a_line_for_each_part_and_figures_of_a_head_only_where_there_is_one(
    cli: Cli, head: str
) -> None:
    asked = [*PLAN, "--epsilon", "1", "--batch", "4096", "--head", head]
    values = json.loads(cli(*asked).stdout)
    lines = [line.split(maxsplit=1) for line in cli(*[word for word in asked if word != "--json"]).stdout.splitlines()]
    told = {name: text for name, text in lines if name != "parts"}
    for (_, text), part in zip([line for line in lines if line[0] == "parts"], values["parts"], strict=True):
        figures = [f"{key} {part[key]:.10g}" for key in ("mu", "epsilon", "q", "z", "steps") if part[key] is not None]
        assert text == f"{part['name']}: {', '.join(figures)}"
    assert ("z" in told) == bool(values["z"]) == (head == "dp-sgd")


def test_uncovered_plans_are_refused(cli: Cli) -> None:
    assert cli(*PLAN, "--epsilon", "1", "--batch", "512", "--head", "sgd").returncode == 4
    assert cli(*PLAN, "--epsilon", "0", "--batch", "512").returncode == 2
    assert cli(*PLAN, "--epsilon", "1", "--batch", "600000").returncode == 2
    assert cli(*PLAN, "--epsilon", "1", "--batch", "0").returncode == 2


@pytest.mark.parametrize("passes", ["nan", "inf", "-1", "0"])
def test_a_plan_needs_a_finite_number_of_passes(cli: Cli, passes: str) -> None:
    done = cli(*PLAN, "--epsilon", "1", "--batch", "512", "--passes", passes)
    assert done.returncode == 2, done.stderr
    assert "--passes must be a finite number above 0" in done.stderr


def test_spent_adds_up_runs_over_the_same_records(cli: Cli) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        settings = ["--set", "train.rounds=6", *QUICK, "--set", f"train.seed={seed}", "--quiet", "--out", name]
        assert cli("train", "breast-cancer", *settings).returncode == 0
    assert cli("train", "digits", "--set", "train.rounds=4", *QUICK, "--quiet", "--out", "c").returncode == 0
    one = json.loads(cli("privacy", "spent", "a", "--json").stdout)
    two = json.loads(cli("privacy", "spent", "a", "b", "--json").stdout)
    keys = """epsilon epsilon_zero_out epsilon_replace_one delta_dp neighbours protects adversary accountant
    noise_source releases head_steps tpr_at_fpr advantage covered not_covered""".split()
    assert set(keys) <= set(one)
    assert one["epsilon"] < two["epsilon"] < 2 * one["epsilon"]
    # runs over other records are added up too: nobody is told to leave one out
    assert json.loads(cli("privacy", "spent", "a", "c", "--json").stdout)["epsilon"] > one["epsilon"]
    assert "final head" in cli("privacy", "spent", "a").stdout


def test_a_run_may_begin_with_a_parents_budget_spent(cli: Cli) -> None:
    """Parent at epsilon 2, child at 5 in all: the child's noise is larger, and its claim covers both."""
    short = ["--set", "train.rounds=6", *QUICK, "--json"]
    assert cli("train", "breast-cancer", *short, "--set", "privacy.epsilon=2", "--out", "a").returncode == 0
    alone = json.loads(cli("train", "breast-cancer", *short, "--out", "b").stdout)
    child = json.loads(cli("train", "breast-cancer", *short, "--set", 'privacy.parents=["a"]', "--out", "c").stdout)
    assert child["epsilon"] == alone["epsilon"] == 5.0
    assert child["sigma_dp"] > 1.05 * alone["sigma_dp"]
    assert child["guarantee"] is True
    assert json.loads(cli("privacy", "spent", "c", "--json").stdout)["epsilon"] == 5.0
    # a parent that spent more than the child may is refused; one whose records cannot be compared costs in full
    much = [*short, "--set", "privacy.epsilon=1", "--set", 'privacy.parents=["a"]', "--out", "d"]
    assert cli("train", "breast-cancer", *much).returncode == 4
    done = cli("train", "digits", *much[:-1], "e")
    assert done.returncode == 4
    assert "leave nothing" in done.stderr
    assert "leave it out" not in done.stderr
    # one that protected labels only may carry features without noise
    labels = [*short, "--set", "privacy.protects=labels", "--set", "devices.start=pca", "--set", "privacy.epsilon=2"]
    assert cli("train", "breast-cancer", *labels, "--out", "f").returncode == 0
    done = cli("train", "breast-cancer", *short, "--set", 'privacy.parents=["f"]', "--out", "g")
    assert done.returncode == 4
    assert "labels only" in done.stderr


def test_a_run_on_nine_tenths_of_the_records_is_a_parent_of_one_on_all(cli: Cli) -> None:
    """What `dpzv tune` does: the records of its trials are part of those of the run that follows."""
    short = ["--set", "train.rounds=6", "--json"]
    part = ["--set", "data.holdout=0.1", "--set", "privacy.epsilon=2", "--out", "part"]
    assert cli("train", "breast-cancer", *short, *part).returncode == 0
    done = cli("train", "breast-cancer", *short, "--set", 'privacy.parents=["part"]', "--out", "whole")
    assert done.returncode == 0, done.stderr
    told = json.loads(cli("privacy", "spent", "whole", "--json").stdout)
    assert told["guarantee"] is True
    assert any("(410 of 456 records are shared)" in words for words in told["covered"])
    assert any("choice of settings" in words for words in told["not_covered"])


def test_an_abandoned_run_is_closed_and_pays_what_it_used(cli: Cli) -> None:
    short = ["breast-cancer", "--set", "train.rounds=300", "--set", "privacy.epsilon=4", "--set", "head.rule=frozen"]
    assert cli("train", *short, "--max-seconds", "0", "--json", "--out", "a").returncode == 0
    short += ["--set", "privacy.epsilon=5", "--set", 'privacy.parents=["a"]', "--max-seconds", "0", "--json"]
    closed = json.loads(cli("train", *short, "--out", "b").stdout)
    alone = json.loads(cli("train", *short, "--set", "privacy.parents=[]", "--out", "c").stdout)
    assert closed["sigma_dp"] == pytest.approx(alone["sigma_dp"], rel=1e-9)  # it released nothing
    # a finished run stays finished, whatever becomes of its summary
    done = cli("privacy", "close", "b")
    assert done.returncode == 0, done.stderr
    assert "0 of 300 releases" in done.stdout


def test_theory_prints_the_bound_term_by_term(cli: Cli) -> None:
    constants = "--F 2.3 --L 1 --l 1 --sigma-s 1 --d-0 2000 --d-m 1000 --d-m 500 --batch 512 --rounds 10000".split()
    constants += ["--records", "60000", "--mu", "0.27", "--json"]
    values = json.loads(cli("privacy", "theory", *constants).stdout)
    names = ("start", "smoothing", "sampling", "clipping", "noise")
    assert values["bound"] == pytest.approx(sum(values[name] for name in names))
    assert values["admissible"] is True
    assert values["corollary_rate"] == pytest.approx(3500**0.5 / (60000 * 0.27))
    assert values["corollary_rounds_printed"] == pytest.approx(3500**0.5 * values["corollary_rounds"])
    seldom = json.loads(cli("privacy", "theory", *constants, "--q-m", "0.9", "--q-m", "0.1").stdout)
    assert seldom["start"] == pytest.approx(5 * values["start"])  # the rarest device has a fifth of the rounds


@pytest.mark.parametrize(
    "arguments",
    [["privacy", "convert", "--epsilon", "1", "--delta", "1e-5"], [*PLAN, "--epsilon", "1", "--batch", "512"]],
)
def test_the_light_verbs_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from dpzv.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'dp_accounting', 'opendp', 'pandas', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, cwd=tmp_path, capture_output=True)
