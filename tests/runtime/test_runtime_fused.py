"""Fused rounds against the reference loop: the same devices, batches, directions and noise, and so the same numbers."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from dpzv import config as configuration
from dpzv import declarations
from dpzv.config import Config
from dpzv.data.dataset import Dataset
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.methods.rules import Question
from dpzv.models.images import PatchCNN, StripCNN
from dpzv.protocol.codec import Codec
from dpzv.protocol.messages import Embeddings
from dpzv.rng import numbered, seed_of
from dpzv.runtime import grid
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.device_view import ask_for_views
from dpzv.runtime.fused_devices import Products
from dpzv.runtime.fused_engine import Engine, run_fused
from dpzv.runtime.fused_grid import run_together
from dpzv.runtime.fused_head import FusedHeadSteps, buffer_size
from dpzv.runtime.fused_kinds import HEADS, METHODS, alike, why_not
from dpzv.runtime.fused_round import HEAD_MOVES, ROUNDS, in_halves
from dpzv.runtime.progress import Pace
from dpzv.runtime.run import load_data, resume
from dpzv.runtime.run_folder import RunFolder
from dpzv.runtime.run_plan import noise_of
from dpzv.runtime.simulate import Simulation
from tests.runtime.short_runs import changed, run

ACCELERATORS = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
LABELS = ("privacy.epsilon=5", "privacy.protects=labels", "train.B=256")
PAPER = (*LABELS, "privacy.accounting=paper")
CASES = {
    "dpzv, frozen head": (*LABELS, "head.rule=frozen", "train.eta_m=0.01", "train.momentum=0.9"),
    "K directions, private head": (
        *LABELS,
        "train.directions=4",
        "train.eta_m=0.003",
        "head.steps=300",
        "head.eta_0=0.3",
    ),
    "joint head": (*LABELS, "head.rule=joint-zo", "train.eta_m=0.01", "train.schedule=cosine"),
    "K directions, joint head": (*LABELS, "train.directions=3", "head.rule=joint-zo", "head.momentum=0.5"),
    "head by its gradient": (*PAPER, "head.rule=sgd", "train.eta_m=0.01", "head.momentum=0.5"),
    "head by differences": (*PAPER, "head.rule=zo", "train.eta_m=0.01"),
    "zoo-vfl": (*LABELS, "train.method=zoo-vfl", "head.rule=frozen", "train.eta_m=0.01"),
    "vafl": (*LABELS, "train.method=vafl", "head.rule=frozen", "train.eta_m=0.1", "train.momentum=0.5"),
    "vfl-czofo": (*LABELS, "train.method=vfl-czofo", "train.eta_m=1e-4", "head.rule=frozen"),
    "zoo-vfl, noise up": (*PAPER, "train.method=zoo-vfl", "head.rule=sgd", "noise.where=uplink"),
    "vafl, noise up": (*PAPER, "train.method=vafl", "head.rule=sgd", "noise.where=uplink"),
    "networks of two kinds": (*LABELS, "head.rule=frozen", 'devices.model=["linear", "mlp", "linear", "mlp"]'),
}
LONG = ("dpzv, frozen head", "K directions, joint head", "vafl")
FAST = ("K directions, joint head", "head by differences", "zoo-vfl, noise up", "vfl-czofo", "networks of two kinds")
Releases = list[tuple[int, int, NDArray[np.float64]]]


@cache
def records() -> Dataset:
    return load_data(changed("digits"))


@contextmanager
def opened(config: Config, folder: Path) -> Iterator[tuple[Simulation, Releases]]:
    """A run that is ready for its first round, and the list of what it releases."""
    simulation = Simulation(config, records(), partial(make_networks, config, records()))
    releases: Releases = []
    with simulation.opened(RunFolder.create(folder, configuration.render(config))):
        simulation.begin(lambda snapshot: True)
        write = simulation.server_run.folder.transcript

        def transcript(t: int, m: int, Delta: NDArray[np.float64], digest: bytes) -> None:
            releases.append((t, m, Delta.copy()))
            write(t, m, Delta, digest)

        vars(simulation.server_run.folder)["transcript"] = transcript
        yield simulation, releases


def by_messages(simulation: Simulation, releases: Releases, n: int) -> None:
    """The reference in float32: messages through the codec, as in every simulated run."""
    for _ in range(n):
        simulation.round()


def by_rules(simulation: Simulation, releases: Releases, n: int) -> None:
    """The reference in any precision: the rules of `methods/` called one after the other."""
    run, noise = simulation.server_run, noise_of(simulation.server_run.config)
    server, lam = run.server, float(run.config.train.lam)  # type: ignore[arg-type]
    for t in range(server.t + 1, server.t + n + 1):
        m = simulation.next_device()
        device, batch = simulation.devices[m - 1], run.schedules[m - 1].ids(server.positions[m - 1])
        ids = torch.tensor(batch, device=server.table.h.device)
        h = device.method.embeddings(device.x_train[ids], device.position)
        rows, columns = server.table.h[ids].clone(), server.table.columns[m - 1]
        arrays = tuple(one.numpy(force=True) for one in h)
        answer = server.method.answer(
            Question(t, m, device.position, rows, columns, arrays, server.y_train[ids], lam)  # type: ignore[arg-type]
        )
        noised = {"grid": answer.grid, "divisor": answer.divisor, "sigma_dp": run.plan.sigma_dp}
        Delta = noise.release(answer.totals, **noised, t=t, m=m)
        server.table.h[ids, columns] = rows[:, columns]
        server.method.head_rule.move(t, Delta, rows, server.y_train[ids], run.gate.head_steps(t))
        device.method.update(Delta, position=device.position, t=t)
        server.passed(m, t, batch)
        device.position += 1
        simulation.clock.answered(m, device.position)
        releases.append((t, m, Delta))


def fused(simulation: Simulation, releases: Releases, n: int) -> None:
    engine = Engine([simulation])
    engine.advance(n // 3)  # two pieces, of which none is a whole number of blocks
    engine.advance(n - n // 3)
    engine.restore()


def in_double(simulation: Simulation) -> None:
    """Weights, features, table and velocities in float64; directions stay float32 numbers, as they are drawn."""
    server = simulation.server_run.server
    for device in simulation.devices:
        device.method.network.double()
        device.method.velocity = [v.double() for v in device.method.velocity]
        device.x_train = device.x_train.double()
    server.table.h = server.table.h.double()
    rule = server.method.head_rule
    rule.head.double()
    rule.velocity = [v.double() for v in rule.velocity]
    vars(rule).update({"_table": server.table.h} if "_table" in vars(rule) else {})


Way = Callable[[Simulation, Releases, int], None]


def played(config: Config, folder: Path, way: Way, n: int, *, double: bool) -> tuple[Releases, torch.Tensor]:
    """What `n` rounds released, and all weights and the table after them in one row."""
    with opened(config, folder) as (simulation, releases):
        if double:
            in_double(simulation)
        way(simulation, releases, n)
        server = simulation.server_run.server
        weights = [w for device in simulation.devices for w in device.method.network.parameters()]
        weights += [*server.method.head.parameters(), server.table.h]
        return releases, torch.cat([w.detach().double().flatten().cpu() for w in weights])


def largest_difference(here: Releases, there: Releases) -> float:
    """The largest difference of two numbers, over the root mean square of all numbers."""
    assert [(t, m) for t, m, _ in here] == [(t, m) for t, m, _ in there]
    a, b = (np.concatenate([Delta for *_, Delta in one]) for one in (here, there))
    return float(np.abs(a - b).max() / math.sqrt(np.square(a).mean()))


@pytest.mark.parametrize(
    ("case", "n"),
    [
        *((case, 6) for case in FAST),
        *(pytest.param(case, 200 if case in LONG else 60, marks=pytest.mark.soak) for case in CASES),
    ],
)
@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_fused_rounds_are_those_of_the_reference_in_double_precision(
    case: str, n: int, accelerator: str, tmp_path: Path
) -> None:
    config = changed("digits", f"train.rounds={n}", *CASES[case], f"runtime.accelerator={accelerator}")
    one, before = played(config, tmp_path / "reference", by_rules, n, double=True)
    two, after = played(config, tmp_path / "fused", fused, n, double=True)
    assert largest_difference(one, two) < 1e-9
    assert (before - after).abs().max() < 1e-8


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize(
    "case",
    ["dpzv, frozen head", *(pytest.param(c, marks=pytest.mark.soak) for c in ("K directions, private head", "vafl"))],
)
def test_fused_rounds_are_those_of_the_reference(case: str, accelerator: str, tmp_path: Path) -> None:
    config = changed("digits", "train.rounds=200", *CASES[case], f"runtime.accelerator={accelerator}")
    one, _ = played(config, tmp_path / "reference", by_messages, 200, double=False)
    two, _ = played(config, tmp_path / "fused", fused, 200, double=False)
    assert 0 < largest_difference(one, two) < 1e-3


@pytest.mark.parametrize("arrays", [1, 2, 3, 5])
def test_half_precision_is_that_of_the_codec(arrays: int) -> None:
    """To the bit, for two runs with radii of their own; so are values that half precision cannot hold."""
    h = torch.randn(2, arrays, 6, 4, generator=torch.Generator().manual_seed(arrays)) * 3
    h[1, 0, 2, 3], h[0, -1, 1, 1] = 1e5, math.nan
    lam = torch.tensor([1e-3, 0.01], dtype=torch.float64)
    h[:, 1:] = h[:, :1] + lam.float()[:, None, None, None] * h[:, 1:]
    found = in_halves(h, lam)
    for r in range(2):
        codec = Codec("float16", float(lam[r]), arrays=arrays)
        sent = codec.decode(codec.encode(Embeddings(1, 0, tuple(one.numpy() for one in h[r]))))
        assert isinstance(sent, Embeddings)
        np.testing.assert_array_equal(found[r].numpy(), np.stack(sent.h))
    assert not torch.equal(found.nan_to_num(), h.nan_to_num())


@pytest.mark.parametrize("case", ["vafl", "vfl-czofo"])
def test_fused_rounds_take_embeddings_in_half_precision(case: str, tmp_path: Path) -> None:
    """Without it the numbers would differ by a hundredth of their size, or more."""
    config = changed("digits", "train.rounds=30", *CASES[case], "codec.name=float16")
    one, _ = played(config, tmp_path / "reference", by_messages, 30, double=False)
    two, _ = played(config, tmp_path / "fused", fused, 30, double=False)
    assert largest_difference(one, two) < 1e-4


def test_runs_that_advance_together_are_what_each_is_alone(tmp_path: Path) -> None:
    """Seeds, budgets, steps and clips differ; every run has its own numbers."""
    changes = (("train.seed=1",), ("privacy.epsilon=2", "train.eta_m=0.03"), ("privacy.C=0.5", "train.momentum=0.5"))
    configs = [
        changed("digits", "train.rounds=12", *CASES["K directions, joint head"], "train.momentum=0.9", *some)
        for some in changes
    ]
    assert len({alike(config) for config in configs}) == 1
    alone = [played(config, tmp_path / f"alone{i}", fused, 12, double=True)[0] for i, config in enumerate(configs)]
    together = at_once(configs, tmp_path, 12)
    for one, two in zip(alone, together, strict=True):
        assert largest_difference(one, two) < 1e-9
    assert largest_difference(alone[0], together[1]) > 0.1  # the runs are different ones


def at_once(configs: Sequence[Config], folder: Path, n: int) -> list[Releases]:
    """What runs release that advance together."""
    with ExitStack() as stack:
        runs = [stack.enter_context(opened(config, folder / f"run{i}")) for i, config in enumerate(configs)]
        for simulation, _ in runs:
            in_double(simulation)
        Engine([simulation for simulation, _ in runs]).advance(n)
        return [releases for _, releases in runs]


def test_a_sample_longer_than_its_buffer_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed("digits", "train.rounds=8", *CASES["K directions, private head"], "head.batch=300")
    one, _ = played(config, tmp_path / "reference", by_rules, 8, double=True)
    monkeypatch.setattr("dpzv.runtime.fused_head.buffer_size", lambda *sizes: 300)  # about half of them are longer
    taken = []
    monkeypatch.setattr(FusedHeadSteps, "longer", _noting(FusedHeadSteps.longer, taken))
    two, _ = played(config, tmp_path / "fused", fused, 8, double=True)
    assert 50 < len(taken) < 250
    assert largest_difference(one, two) < 1e-9


def _noting(method: Callable[[FusedHeadSteps, int], None], taken: list[int]) -> Callable[[FusedHeadSteps, int], None]:
    def noting(self: FusedHeadSteps, i: int) -> None:
        taken.append(i)
        method(self, i)

    return noting


def test_buffers_are_exceeded_with_a_probability_below_1e_12() -> None:
    for D, expected, steps in [(60_000, 1024, 1000), (1347, 300, 400), (10**6, 8192, 16_000)]:
        size = buffer_size(D, expected, steps)
        assert steps * binom.sf(size, D, expected / D) < 1e-12
        assert size < 1.5 * expected + 500


def summary_of(path: Path) -> dict[str, Any]:
    """What a summary says, without what differs from run to run."""
    found: dict[str, Any] = msgspec.json.decode((path / "summary.json").read_bytes())
    return {key: found[key] for key in found.keys() - {"seconds", "statement"}}


def test_a_fused_run_writes_what_a_simulated_one_writes(tmp_path: Path) -> None:
    """All figures that follow from public numbers are equal; the transcript has the same rounds without frames."""
    settings = ("train.rounds=30", "train.eval_every=10", *CASES["dpzv, frozen head"], "head.final=private")
    summaries = {}
    for kind in ("simulate", "fused"):
        run(changed("digits", *settings, f"runtime.kind={kind}"), tmp_path / kind)
        summaries[kind] = summary_of(tmp_path / kind)
    one, two = summaries["simulate"], summaries["fused"]
    close = ("test_loss", "test_accuracy", "private_head", "untrained", "final_head")
    assert {key: one[key] for key in one if key not in close} == {key: two[key] for key in two if key not in close}
    assert two["test_loss"] == pytest.approx(one["test_loss"], rel=1e-3)
    lines = [(tmp_path / kind / "metrics.jsonl").read_text().splitlines() for kind in summaries]
    for before, after in zip(*lines, strict=True):
        first, second = msgspec.json.decode(before), msgspec.json.decode(after)
        for key in ("round", "virtual_seconds", "bytes_up", "bytes_down", "epsilon_spent", "mean_delay"):
            assert first[key] == second[key]
        assert second["test_loss"] == pytest.approx(first["test_loss"], rel=1e-4)


def test_an_interrupted_run_has_paid_for_its_block_and_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    settings = ("train.rounds=40", "train.eval_every=10", "runtime.kind=fused", *CASES["dpzv, frozen head"])
    config = changed("digits", *settings, "head.final=private")
    run(config, tmp_path / "whole")
    with opened(config, tmp_path / "cut") as (simulation, _):
        run_fused([simulation], lambda snapshot: snapshot.t < 20)  # stops after round 20 and keeps a checkpoint
        Engine([simulation]).advance(7)  # seven more, which no checkpoint knows of
    with sqlite3.connect(tmp_path / "cut" / "ledger.sqlite") as ledger:
        assert ledger.execute("SELECT count(*), max(t) FROM releases").fetchone() == (27, 27)
    resume(tmp_path / "cut", lambda snapshot: True, math.inf)
    whole, cut = (summary_of(tmp_path / name) for name in ("whole", "cut"))
    assert cut == whole
    assert (tmp_path / "cut" / "transcript.jsonl").read_bytes() == (
        tmp_path / "whole" / "transcript.jsonl"
    ).read_bytes()
    with sqlite3.connect(tmp_path / "cut" / "ledger.sqlite") as ledger:
        assert ledger.execute("SELECT count(*), max(t) FROM releases").fetchone() == (40, 40)


@pytest.mark.soak
def test_runs_of_a_grid_advance_together_in_one_process(tmp_path: Path) -> None:
    settings = ("train.rounds=12", "runtime.kind=fused", *CASES["dpzv, frozen head"], "head.final=private")
    configs = [changed("digits", *settings, f"train.seed={seed}") for seed in range(2)]
    jobs = [grid.Job(f"seed{seed}", config, 12) for seed, config in enumerate(configs)]
    assert grid.run(jobs, tmp_path, 1, lambda state: True) == []
    assert grid._together([*jobs, grid.Job("wide", changed("digits", *settings, "train.B=128"), 12)]) == [
        tuple(jobs),
        (grid.Job("wide", changed("digits", *settings, "train.B=128"), 12),),
    ]
    alone = run(configs[1], tmp_path / "alone")
    together = summary_of(tmp_path / "runs" / jobs[1].key)
    assert together["test_accuracy"] == pytest.approx(alone["test_accuracy"], abs=0.01)
    assert together["epsilon_spent"] == alone["epsilon_spent"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [("noise.source=exact", "secret"), ("codec.name=int8", "codec int8"), ("train.rounds=0", "no rounds")],
)
def test_what_cannot_be_fused_is_refused_before_anything_is_written(setting: str, words: str, tmp_path: Path) -> None:
    config = changed("digits", "runtime.kind=fused", setting)
    assert words in why_not(config)
    with pytest.raises(ConfigError, match=words):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_views_of_devices_are_not_kept_by_fused_rounds(tmp_path: Path) -> None:
    config = changed("digits", "train.rounds=8", "runtime.kind=fused", "head.rule=frozen")
    ask_for_views(tmp_path / "run")
    with opened(config, tmp_path / "run") as (simulation, _), pytest.raises(ConfigError, match="no views"):
        run_fused([simulation], lambda snapshot: True)


def test_rounds_with_secret_noise_are_never_made_in_blocks(tmp_path: Path) -> None:
    config = changed("digits", "noise.source=exact", "train.rounds=8", "head.rule=frozen")
    with opened(config, tmp_path / "run") as (simulation, releases):
        with pytest.raises(PrivacyRefused, match="simulated"):
            Engine([simulation]).advance(4)
        assert simulation.server_run.ledger.releases == len(releases) == 0


def test_methods_and_head_rules_that_are_not_refused_have_a_fused_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method or head rule that somebody adds need not have one: it is refused in a sentence."""
    assert set(METHODS) == set(ROUNDS) <= set(declarations.METHODS)
    assert set(HEADS) == set(HEAD_MOVES) <= set(declarations.HEAD_RULES)
    for table, key in ((declarations.METHODS, "train.method"), (declarations.HEAD_RULES, "head.rule")):
        monkeypatch.setitem(table, "newest", next(iter(table.values())))  # type: ignore[arg-type]
        assert "newest has no fused" in why_not(changed("digits", f"{key}=newest"))


def test_a_tape_has_what_its_round_needs_whatever_codecs_may_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directions of weights do not depend on whether a codec may send slopes."""
    facts = msgspec.structs.replace(declarations.METHODS["zoo-vfl"], slopes=False)
    monkeypatch.setitem(declarations.METHODS, "zoo-vfl", facts)
    config = changed("digits", *CASES["zoo-vfl"], "train.rounds=8", "runtime.kind=fused")
    with opened(config, tmp_path / "run") as (simulation, releases):
        Engine([simulation]).advance(4)
    assert len(releases) == 4


def test_convolutions_of_several_runs_are_those_of_each() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, 9, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 4, 3, 3, 2, generator=generator, dtype=torch.float64)
    bias = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    conv = torch.nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2)).double()

    def forward(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(conv, {"weight": w, "bias": b}, (x,))

    with Products():
        found = torch.func.vmap(forward)(weight, bias, x)
    for r in range(2):
        assert torch.allclose(found[r], forward(weight[r], bias[r], x[r]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [PatchCNN, StripCNN])
def test_image_networks_of_several_runs_are_those_of_each(kind: Callable[..., torch.nn.Module]) -> None:
    """Records of several runs are a batch of batches, which not every operation of a network can take."""
    shape = (3, 16) if kind is PatchCNN else (4, 28)
    networks = [kind(*shape, 8, torch.Generator().manual_seed(run)) for run in range(2)]
    x = torch.rand(2, 5, math.prod(shape) * (16 if kind is PatchCNN else 1))
    stacked = {name: torch.stack([n.state_dict()[name] for n in networks]) for name in networks[0].state_dict()}

    def forward(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(networks[0], weights, (x,))

    with Products():
        found = torch.func.vmap(forward)(stacked, x)
    for r, network in enumerate(networks):
        assert torch.allclose(found[r], network(x[r]), rtol=1e-4, atol=1e-5)


def test_runs_of_several_seeds_whose_first_layers_never_move_go_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What these layers make of the records takes the place of the records, and is another thing for every seed."""
    data, random = records(), np.random.default_rng(0)
    pixels = {
        name: tuple(random.integers(0, 256, (len(part), 64), np.uint8) for part in getattr(data, name))
        for name in ("x_train", "x_test")
    }
    monkeypatch.setattr("dpzv.runtime.fused_grid.load_data", lambda config: replace(data, **pixels))
    layers = ("devices.model=cnn4", "devices.start=random", "devices.last_layers=1", "train.rounds=4")
    settings = ("runtime.kind=fused", *CASES["dpzv, frozen head"], "head.final=private", *layers)
    configs = [changed("digits", *settings, f"train.seed={seed}") for seed in (0, 1, 1)]
    assert len({alike(config) for config in configs}) == 1
    assert run_together([(config, tmp_path / f"run{i}") for i, config in enumerate(configs)])
    first, *same = (summary_of(tmp_path / f"run{i}")["test_loss"] for i in range(3))
    assert same[0] == same[1] != first


def test_numbered_seeds_are_those_of_their_names() -> None:
    for number in (0, 7, 123456789):
        assert numbered((3, "direction", 2))(number) == seed_of(3, "direction", 2, number)
        assert numbered((), ("direction", 0))(number) == seed_of(number, "direction", 0)
        assert numbered((5, "noise"), (4,))(number) == seed_of(5, "noise", number, 4)


def test_the_pace_is_that_of_the_last_seconds() -> None:
    pace = Pace()
    assert pace.text(0, 1000, 0.0) == ""
    assert pace.text(100, 1000, 1.0) == "100 rounds/s, 0:09 left"
    assert pace.text(200, 80_200, 21.0) == "5 rounds/s, 266:40 left"
