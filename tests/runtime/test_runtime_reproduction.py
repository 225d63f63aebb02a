"""The plan of a reproduction, runs in turn, and the programs beside runs: simple models, gradients, memory."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from dpzv import config as configuration
from dpzv import recipes
from dpzv.config import Config, Tree
from dpzv.data.dataset import Dataset, Records, from_arrays
from dpzv.errors import ConfigError
from dpzv.privacy.gdp import mu_of
from dpzv.runtime import gradient_norm, memory_peak
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.grid import Job, State, config_hash
from dpzv.runtime.in_turn import run_in_turn
from dpzv.runtime.plain_models import plain_model
from dpzv.runtime.reproduction import Asked, Cell, cells_of, ordered
from dpzv.runtime.reproduction_files import ITEMS, TUNING, Tuned, item_of, shipped, workloads
from dpzv.runtime.run import load_data
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.simulate import Simulation


def cells(name: str, out: Path = Path("nowhere"), scale: str = "full") -> list[Cell]:
    return cells_of(item_of(name), Asked(scale, out, (), {"modelnet40": __file__, "amazon": __file__}))


@pytest.mark.parametrize("name", [TUNING, *ITEMS])
@pytest.mark.parametrize("scale", ["full", "smoke"])
def test_every_run_of_every_item_is_what_its_row_says(name: str, scale: str) -> None:
    for cell in cells(name, scale=scale):
        config = cell.job.config
        assert config.privacy.accounting == cell.accounting
        # no device of these rows takes anything from the noise
        one_for_all = cell.row in ("frozen", "frozen-zo", "plain") and cell.accounting == "paper"
        assert config.privacy.epsilon == (math.inf if one_for_all else cell.epsilon)
        assert config.train.seed == cell.seed
        assert (config.noise.source, config.runtime.threads) == ("seeded", 1)
        assert config.noise.where == ("uplink" if cell.accounting == "paper" and _rival(cell) else "downlink")
        assert cell.seconds > 0
        if cell.row == "frozen":
            still = config.train.eta_m == 0 if cell.accounting == "paper" else config.train.rounds == 0
            assert still
            assert config.head.rule == ("sgd" if cell.accounting == "paper" else "dp-sgd")
        if cell.row == "frozen-zo":
            assert (config.train.eta_m, config.head.rule) == (0, "zo")
        if cell.row == "dpzv-zo":
            assert config.head.rule == ("zo" if cell.accounting == "paper" else "joint-zo")
        if cell.workload in ("mnist", "cifar10") and cell.row != "public":
            assert config.devices.start == "random"
        assert (name == TUNING) == (config.data.holdout == 0.1) == (cell.setting is not None)


def _rival(cell: Cell) -> bool:
    return cell.job.config.train.method != "dpzv"


@pytest.mark.parametrize("runtime", [{"kind": "fused"}, {"accelerator": "cuda"}])
def test_runs_are_fused_where_they_can_be_if_asked_to_or_on_an_accelerator(runtime: Tree, tmp_path: Path) -> None:
    found = cells_of(item_of("fig-honest"), Asked("full", tmp_path, ({"runtime": runtime},), {}))
    kinds = {(cell.row, bool(cell.job.program)): cell.job.config.runtime.kind for cell in found}
    assert kinds["dpzv", False] == "fused"
    assert kinds["untrained", False] == "simulate"  # it has no rounds
    assert {kind for (_, program), kind in kinds.items() if program} == {"simulate"}


@pytest.mark.parametrize("name", ["fig-widths", "fig-memory", "fig-theory"])
def test_a_run_counts_wherever_it_was_computed_unless_it_measures_the_machine(name: str) -> None:
    elsewhere = {"runtime": {"accelerator": "cuda", "threads": 4}}
    here, there = (cells_of(item_of(name), Asked("full", Path("nowhere"), changes)) for changes in ((), (elsewhere,)))
    for one, other in zip(here, there, strict=True):
        assert other.job.config.runtime.accelerator == "cuda"
        assert (one.job.key == other.job.key) == (one.row != "memory")
        assert one.job.key == f"{one.job.name}-{config_hash(one.job.config)[:12]}"


def test_every_method_has_the_same_number_of_trials() -> None:
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for cell in cells(TUNING):
        own = counts.setdefault((cell.workload, cell.accounting), {})
        own[cell.row] = own.get(cell.row, 0) + 1
    assert len(counts) == 9
    for own in counts.values():
        assert set(own) == {"dpzv", "dpzv-zo", "vafl", "zoo-vfl", "vfl-czofo"}
        assert set(own.values()) == {item_of(TUNING).options["trials"]}


def test_settings_of_trials_are_taken_and_frozen_devices_take_the_head_alone(tmp_path: Path) -> None:
    chosen = {"train.eta_m": 0.5, "head.eta_0": 0.7, "privacy.C": 9.0}
    (tmp_path / TUNING).mkdir()
    best = {"dpzv": {"trials": 8, "score": 0.5, "settings": chosen}}
    (tmp_path / TUNING / "mnist-paper.toml").write_bytes(msgspec.toml.encode(best))
    found = {cell.row: cell for cell in cells("fig-convergence", tmp_path) if cell.workload == "mnist"}
    tuned, frozen, rival = (found[row].job.config for row in ("dpzv", "frozen", "vafl"))
    assert (tuned.train.eta_m, tuned.head.eta_0, tuned.privacy.C, found["dpzv"].trials) == (0.5, 0.7, 9.0, 8)
    assert (frozen.train.eta_m, frozen.head.eta_0, found["frozen"].trials) == (0.0, 0.7, 8)
    assert (rival.head.eta_0, found["vafl"].trials) == (0.1, 0)
    assert all(cell.job.config.privacy.C != 9.0 for cell in cells(TUNING, tmp_path))


def test_what_trials_chose_is_among_the_trials_of_today() -> None:
    """A file of an earlier space of settings would be used for runs, but stand on no page."""
    drawn: dict[tuple[str, str], list[object]] = {}
    for cell in cells(TUNING):
        drawn.setdefault((f"{cell.workload}-{cell.accounting}", cell.row), []).append(cell.setting)
    for name in {name for name, _ in drawn}:
        for row, chosen in shipped(name).items():
            assert chosen["settings"] in drawn[name, row], (name, row)
            assert chosen["trials"] == len(drawn[name, row])


def test_a_simple_model_is_fitted_once_for_all_items() -> None:
    found: dict[str, set[str]] = {}
    for name in ("fig-tradeoff", "table-communication", "fig-convergence", "fig-budget", "fig-honest"):
        for cell in cells(name):
            if cell.row == "plain":
                found.setdefault(cell.workload, set()).add(cell.job.key)
                assert math.isinf(cell.job.config.privacy.epsilon)
                assert cell.trials is None
    assert set(found) == {"mnist", "cifar10", "modelnet40", "amazon", "imdb", "flights"}
    assert all(len(keys) == 1 for keys in found.values())


@pytest.mark.parametrize("row", ["frozen", "frozen-zo"])
def test_frozen_devices_are_one_run_for_all_budgets_because_noise_changes_nothing_there(
    row: str, tmp_path: Path
) -> None:
    found = [cell for cell in cells("fig-tradeoff", scale="smoke") if cell.row == row]
    assert len({cell.epsilon for cell in found}) == len(found) > 1
    (key,) = {cell.job.key for cell in found}
    job, noise = found[0].job, {"privacy": {"epsilon": 0.5}}
    noised = configuration.parse(configuration.merge(msgspec.toml.decode(configuration.render(job.config)), noise))
    jobs = [job, Job("noised", noised, job.rounds)]
    assert run_in_turn(jobs, tmp_path, lambda state: True) == []
    own, other = (json.loads((tmp_path / "runs" / job.key / "summary.json").read_text()) for job in jobs)
    assert own["private_head"] == other["private_head"]
    assert own["test_accuracy"] == other["test_accuracy"]
    assert job.key == key


@pytest.mark.parametrize(
    ("epsilon", "passes"),
    [(0.1, 0.2), (1.0, 0.2), (5.0, 0.2 * (mu_of(5, 1e-3) / mu_of(1, 1e-3)) ** 2), (math.inf, 20.0)],
)
def test_a_length_that_trials_chose_grows_with_the_budget_up_to_that_of_the_item(
    tmp_path: Path, epsilon: float, passes: float
) -> None:
    (tmp_path / TUNING).mkdir()
    best = {"vafl": Tuned(12, 1.0, 0.9, {"train.passes": 0.2, "train.B": 64})}
    (tmp_path / TUNING / "mnist-paper.toml").write_bytes(msgspec.toml.encode(best))
    found = {(c.workload, c.row, c.epsilon): c for c in cells("fig-tradeoff", tmp_path) if not c.case.name}
    config = found["mnist", "vafl", epsilon].job.config
    assert config.train.B == 64
    assert config.train.passes == pytest.approx(passes)
    assert found["mnist", "vafl", epsilon].job.rounds >= 20 * config.train.eval_every
    assert found["mnist", "dpzv", epsilon].job.config.train.passes == 20
    assert found["mnist", "dpzv", epsilon].job.config.train.B == 512
    as_long = [c for c in cells("fig-tradeoff", tmp_path) if c.case.name and c.row == "vafl" and c.workload == "mnist"]
    assert [(c.epsilon, c.job.config.train.passes) for c in as_long] == [(5.0, 0.2), (10.0, 0.2), (math.inf, 0.2)]


def test_every_row_stands_beside_frozen_devices_whose_head_moves_by_its_own_rule() -> None:
    """At the paper's accounting; under the exact account the head of frozen devices has the whole budget."""
    for name in ("fig-convergence", "table-communication", "fig-tradeoff", "fig-budget", "fig-delay"):
        found = [cell for cell in cells(name) if cell.accounting == "paper" and not cell.job.program]
        rules = {(cell.workload, cell.row): cell.job.config.head.rule for cell in found}
        for cell in found:
            assert rules[cell.workload, cell.kind.frozen] == cell.job.config.head.rule


def test_steps_of_the_head_without_noise_are_not_those_of_the_private_head(tmp_path: Path) -> None:
    for accounting in ("paper", "exact"):  # of trials that chose nothing
        (tmp_path / TUNING).mkdir(exist_ok=True)
        (tmp_path / TUNING / f"mnist-{accounting}.toml").write_text("")
    found = [cell for cell in cells("fig-honest", tmp_path) if cell.row == "dpzv"]
    steps = {cell.accounting: cell.job.config.head.eta_0 for cell in found}
    assert steps == {"paper": workloads()["mnist"].paper["head.eta_0"], "exact": 1.0}


def test_the_same_configuration_is_one_run_and_what_is_worth_most_a_second_comes_first() -> None:
    items = {name: cells(name) for name in ("fig-tradeoff", "fig-budget", "fig-honest")}
    order = ordered(items)
    keys = [cell.job.key for cell in order]
    assert len(set(keys)) == len(keys)
    shared = {c.job.key for c in items["fig-tradeoff"]} & {c.job.key for c in items["fig-honest"]}
    assert shared  # MNIST by the published rule is in both
    worth: dict[str, float] = {}
    for name, own in items.items():
        alive = {cell.job.key for cell in own if not cell.missing}
        share = item_of(name).value / max(1, len(alive))
        worth |= {key: worth.get(key, 0.0) + share for key in alive}
    ratios = [worth[cell.job.key] / cell.seconds for cell in order]
    assert ratios == sorted(ratios, reverse=True)


def test_what_has_no_records_here_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPZV_DATA", str(tmp_path))
    found = cells_of(item_of("fig-tradeoff"), Asked("full", tmp_path))
    assert {cell.workload for cell in found} == {"mnist", "cifar10", "modelnet40", "amazon", "imdb"}
    assert all(cell.missing.startswith("not run: ") for cell in found)
    assert ordered({"fig-tradeoff": found}) == []
    assert not any(cell.missing for cell in cells_of(item_of("fig-memory"), Asked("full", tmp_path)))  # needs none


def test_a_slow_device_is_one_of_the_recipes_cases_and_all_wait_for_it_in_a_synchronous_run() -> None:
    by_case = {cell.case.name: cell.job.config.devices.compute for cell in cells("fig-delay")}
    devices = workloads()["mnist"].devices
    for ratio in (4, 16):
        asynchronous, synchronous = by_case[f"1:{ratio}, asynchronous"], by_case[f"1:{ratio}, synchronous"]
        assert isinstance(asynchronous, tuple)
        assert len(asynchronous) == devices
        assert max(asynchronous) == synchronous == pytest.approx(ratio * min(asynchronous))
        assert sum(seconds == synchronous for seconds in asynchronous) == 1


def digits(**train: object) -> Config:
    tree = configuration.merge(recipes.tree("digits"), {"train": {"rounds": 12, "B": 128, "eval_every": 4, **train}})
    short = {"head": {"refit_steps": 10, "final": "refit", "rule": "frozen"}, "noise": {"source": "seeded"}}
    return configuration.parse(configuration.merge(tree, short))


def test_runs_in_turn_stop_where_they_are_and_go_on(tmp_path: Path) -> None:
    jobs = [Job("one", digits(), 12), Job("two", digits(seed=1), 12)]
    calls = 0

    def impatient(_: State) -> bool:
        nonlocal calls
        calls += 1
        return calls < 9

    assert run_in_turn(jobs, tmp_path / "out", impatient) is None
    assert not list(tmp_path.glob("out/runs/*/summary.json"))
    assert run_in_turn(jobs, tmp_path / "out", lambda state: True) == []
    assert run_in_turn(jobs, tmp_path / "whole", lambda state: True) == []
    for job in jobs:
        texts = [(tmp_path / out / "runs" / job.key / "transcript.jsonl").read_text() for out in ("out", "whole")]
        assert texts[0] == texts[1]
        assert texts[0].count("\n") == 12


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    large = digits(B=100_000)
    failures = run_in_turn([Job("bad", large, 1), Job("good", digits(), 12)], tmp_path, lambda state: True)
    assert failures is not None
    assert [(failure.name, failure.code) for failure in failures] == [("bad", ConfigError.exit_code)]
    assert "train.B" in failures[0].sentence
    assert len(list(tmp_path.glob("runs/good-*/summary.json"))) == 1


def test_the_gradient_is_the_slope_of_the_loss_in_its_own_direction(tmp_path: Path) -> None:
    """Moving all weights by s times the gradient changes the loss by s times its squared norm, to first order."""
    config = digits()
    data = load_data(config)
    simulation = Simulation(config, data, partial(make_networks, config, data))
    with simulation.opened(RunFolder.create(tmp_path / "run", configuration.render(config))):
        head, networks = simulation.server_run.server.method.head, [d.method.network for d in simulation.devices]
        weights = [w for part in (head, *networks) for w in part.parameters()]
        before, norm = gradient_norm.squared_norm(simulation, data, "cpu")
        x = [torch.from_numpy(part) for part in data.x_train]
        for w in weights:
            w.requires_grad_(True)
        output = head(torch.cat([network(part) for network, part in zip(networks, x, strict=True)], dim=1))
        loss = torch.nn.functional.cross_entropy(output, torch.from_numpy(data.y_train))
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, gradient in zip(weights, gradients, strict=True):
                w += 1e-3 * gradient
        after, _ = gradient_norm.squared_norm(simulation, data, "cpu")
    assert before == pytest.approx(loss.item(), rel=1e-5)
    assert norm == pytest.approx(sum(float(g.square().sum()) for g in gradients), rel=1e-4)
    assert (after - before) / 1e-3 == pytest.approx(norm, rel=0.02)


def test_a_watched_run_is_the_run_itself(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(configuration.render(digits()))
    gradient_norm.main(file, tmp_path / "watched")
    watched = json.loads((tmp_path / "watched" / "summary.json").read_text())
    assert [line["round"] for line in watched["gradient"]] == [0, 1, 2, 4, 8, 12]
    assert run_in_turn([Job("plain", digits(), 12)], tmp_path, lambda state: True) == []
    (plain,) = tmp_path.glob("runs/plain-*/summary.json")
    assert watched["private_head"] == json.loads(plain.read_text())["private_head"]


def test_peaks_are_measured_for_every_method(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(configuration.render(digits()))
    memory_peak.main(file, tmp_path / "memory")
    found = json.loads((tmp_path / "memory" / "summary.json").read_text())
    assert set(found["peaks"]) == {"inference", "dpzv", "vafl", "zoo-vfl", "vfl-czofo"}
    weights = 4 * (1024 * 1024 + 1024)
    assert found["weights"] == weights
    assert min(found["peaks"].values()) > 0.9 * weights  # a smaller network fits into what a busy process has to spare


def test_a_peak_on_an_accelerator_is_measured_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = tmp_path / "config.toml", list[tuple[str, str]]()

    def measured(model: str, action: str, accelerator: str) -> int:
        asked.append((model, accelerator))
        return 1

    monkeypatch.setattr(memory_peak, "measured", measured)
    file.write_text(configuration.render(digits()).replace('accelerator = "cpu"', 'accelerator = "cuda"'))
    memory_peak.main(file, tmp_path / "memory")
    assert set(asked) == {("tiny", "cuda")}


def made(x: np.ndarray, y: np.ndarray, task: str, classes: int) -> Dataset:
    half, middle = len(y) // 2, x.shape[1] // 2
    train, test = (Records([x[part, :middle], x[part, middle:]], y[part]) for part in (slice(half), slice(half, None)))
    return from_arrays(train, test, task=task, n_classes=classes)  # type: ignore[arg-type]


def test_each_kind_of_records_has_a_model_that_can_learn_what_it_should() -> None:
    draw = np.random.default_rng(0)
    y = draw.integers(0, 2, 800)
    ids = draw.integers(5, 50, (800, 12)).astype(np.int32)
    ids[:, 7] = np.where(y == 1, 3, 4)  # one word tells the label
    name, accuracy = plain_model(made(ids, y, "binary", 2))
    assert (name, accuracy) == ("logistic regression on tf-idf of word pieces", 1.0)
    table = draw.normal(size=(2000, 4)).astype(np.float32)
    both = ((table[:, 0] > 0) ^ (table[:, 3] > 0)).astype(np.int64)  # nothing that is linear in columns
    name, accuracy = plain_model(made(table, both, "binary", 2))
    assert name == "boosted trees"
    assert accuracy > 0.9
    kinds = draw.integers(0, 3, 600)
    pixels = np.clip(40 * kinds[:, None] + draw.normal(0, 5, (600, 16)) + 60, 0, 255).astype(np.uint8)
    name, accuracy = plain_model(made(pixels, kinds, "classes", 3))
    assert (name, accuracy) == ("kernel regression on principal components", 1.0)
    rings = np.linalg.norm(x := draw.normal(size=(1200, 2)), axis=1) > 1.2  # nothing that is linear in pixels
    pixels = np.clip(40 * x + 128, 0, 255).astype(np.uint8)
    assert plain_model(made(pixels, rings.astype(np.int64), "classes", 2))[1] > 0.95
    with pytest.raises(ConfigError, match="regression"):
        plain_model(made(table, table[:, 0], "regression", 0))


def test_the_hash_of_a_run_does_not_depend_on_where_files_lie() -> None:
    places = [Asked("full", Path("a"), (), {"modelnet40": path}) for path in (__file__, str(Path(__file__).parent))]
    first, second = ([cell.job for cell in cells_of(item_of("fig-convergence"), asked)] for asked in places)
    assert [config_hash(job.config) for job in first] == [config_hash(job.config) for job in second]
    assert not math.isnan(sum(cell.seconds for cell in cells("fig-convergence")))
