"""What a device's work on one batch costs with each method, measured, for the virtual clock.

`devices.compute` of a recipe is the time of DPZV's two forwards with one direction; the clock charges (K + 1) / 2 times
as much for K directions. Whatever else makes a configuration's work slower or faster is one factor, measured by a few
real rounds on the recipe's own networks and batch. The factors are kept in a file, so that a second call finds the same
figures and the same runs.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dpzv import config as configuration
from dpzv.config import Config, HeadSection, NoiseSection, PrivacySection, TrainSection
from dpzv.durable import write_atomically
from dpzv.errors import DpzvError
from dpzv.runtime.clock import compute_of
from dpzv.runtime.fused_kinds import fused_if_possible, why_not
from dpzv.runtime.grid import Job, State, Watch, config_hash, cores, jobs_that_fit
from dpzv.runtime.run_plan import batch_of, sizes_of

if TYPE_CHECKING:
    from dpzv.data.dataset import Dataset
    from dpzv.protocol.device import Device

__all__ = ["Compute", "charge", "charged", "prepare", "prepare_alike", "work_of"]

REPEATS = 50
"""The most batches of each device that are timed, after a first one that is not."""

ENOUGH = 0.5
"""Seconds of timed work after which no further batch is begun, once `AT_LEAST` batches are timed."""

AT_LEAST = 5
"""The fewest batches of each device that are timed."""

CONTEXT = 600_000_000
"""Bytes of accelerator memory that a process takes before its first tensor."""


class Cost(msgspec.Struct, frozen=True):
    """The seconds of a device's work for one batch, and by which factor they exceed what the clock would charge."""

    method: str
    B: int
    seconds: float
    factor: float
    D: int
    M: int


class Compute(msgspec.Struct, frozen=True):
    """Costs by the hash of the work, the memory that a run needs, and the threads it gets (0: not chosen yet)."""

    costs: dict[str, Cost] = {}
    run_bytes: int = 0  # the most memory that was measured
    accelerator_share: float = 0.0  # the share of the accelerator's memory that a run needs
    threads: int = 0
    cuda: bool = False  # whether an accelerator was found

    def cost(self, config: Config) -> Cost:
        """The cost of a configuration's work."""
        return self.costs[config_hash(work_of(config))]


def work_of(config: Config) -> Config:
    """The part of a configuration that a device's work depends on, as a short run without privacy."""
    train = config.train
    return Config(
        data=config.data,
        devices=msgspec.structs.replace(config.devices, compute=0.01, bandwidth=12.5e6, latency=0.0),
        train=TrainSection(
            method=train.method,
            rounds=0,
            B=train.B,
            directions=train.directions,
            q=train.q,
            momentum=train.momentum,
        ),
        head=HeadSection(rule="frozen"),  # the server's work is not a device's
        privacy=PrivacySection(epsilon=float("inf"), protects="labels", min_batch=config.privacy.min_batch),
        noise=NoiseSection(source="seeded"),
        codec=config.codec,
        runtime=config.runtime,
    )


def charged(config: Config, factor: float) -> Config:
    """`config` with every `devices.compute` multiplied by `factor`."""
    value = config.devices.compute
    compute = tuple(_scaled(v, factor) for v in value) if isinstance(value, tuple) else _scaled(value, factor)
    return msgspec.structs.replace(config, devices=msgspec.structs.replace(config.devices, compute=compute))


def _scaled(compute: float | str, factor: float) -> float | str:
    """Seconds, or ``"exponential SECONDS"``, times `factor`."""
    seconds, exponential = compute_of(compute)
    scaled = f"{seconds * factor:.6g}"
    return f"exponential {scaled}" if exponential else float(scaled)


def charge(configs: Sequence[Config], base: Config, file: Path, watch: Watch) -> Compute | None:
    """The costs of `configs` relative to `base`, from `file` as far as it knows them; `None` if stopped."""
    known = msgspec.json.decode(file.read_bytes(), type=Compute) if file.exists() else Compute()
    wanted = {config_hash(work): work for work in map(work_of, configs)}
    new = {key: work for key, work in wanted.items() if key not in known.costs}
    if not new:
        return known
    one = work_of(base)
    one = msgspec.structs.replace(one, train=msgspec.structs.replace(one.train, directions=1))
    measured = _in_a_child({config_hash(one): one, **new}, watch)
    if measured is None:
        return None
    seconds = measured["seconds"]
    costs = dict(known.costs)
    for key, work in new.items():
        evaluations = (work.train.directions + 1) / 2  # in pairs, as the clock charges them
        factor = float(f"{seconds[key] / seconds[config_hash(one)] / evaluations:.2g}")
        costs[key] = Cost(
            work.train.method, batch_of(work, measured["D"]), seconds[key], factor, measured["D"], measured["M"]
        )
    compute = Compute(
        costs,
        max(known.run_bytes, measured["bytes"]),
        max(known.accelerator_share, measured["accelerator_share"]),
        known.threads,
        known.cuda if known.costs else measured["cuda"],
    )
    _write(file, compute)
    return compute


def prepare(
    cells: Mapping[str, Config], base: Config, out: Path, jobs: int, watch: Watch
) -> tuple[list[Job], Compute, int] | None:
    """The named configurations as jobs, charged and with their threads, the figures, and how many run at once.

    With `jobs` 0 as many run at once as cores and memory allow. The threads of a run are chosen once and kept with the
    figures: they are part of a run's hash, and a second call must find the runs of the first. `None` if stopped.
    """
    file = out / "compute.json"
    compute = charge([config for config in cells.values() if config.train.rounds != 0], base, file, watch)
    if compute is None:
        return None
    compute, at_once = _with_threads(compute, file, jobs, len(cells))
    made = []
    for name, config in cells.items():
        rounds = 0
        if config.train.rounds != 0:
            cost = compute.cost(config)
            config, rounds = charged(config, cost.factor), sizes_of(config, cost.D, cost.M).T
        made.append(Job(name, _on(config, compute), rounds))
    return made, compute, at_once


def prepare_alike(
    cells: Mapping[str, Config], ceilings: Collection[str], base: Config, out: Path, jobs: int, watch: Watch
) -> tuple[list[Job], Compute, int] | None:
    """Like `prepare`, for runs of one method whose virtual time nobody compares: only `base`, the largest, is measured.

    What a batch costs at a device stays as the recipe says. The names in `ceilings` are trained by backpropagation.
    """
    file = out / "compute.json"
    compute = charge([base], base, file, watch)
    if compute is None:
        return None
    compute, at_once = _with_threads(compute, file, jobs, len(cells))
    cost, made = compute.cost(base), []
    for name, config in cells.items():
        rounds = sizes_of(config, cost.D, len(config.data.devices) or cost.M).T
        program = "dpzv.runtime.ceiling" if name in ceilings else ""
        made.append(Job(name, _on(config, compute, fuses=not program), rounds, program))
    return made, compute, at_once


def _with_threads(compute: Compute, file: Path, jobs: int, runs: int) -> tuple[Compute, int]:
    """The figures with the threads of a run, which are chosen at the first call, and how many runs go on at once."""
    at_once = jobs or jobs_that_fit(compute.run_bytes, compute.accelerator_share, runs)
    if not compute.threads:
        compute = msgspec.structs.replace(compute, threads=max(1, cores() // at_once))
        _write(file, compute)
    return compute, at_once


def _on(config: Config, compute: Compute, *, fuses: bool = True) -> Config:
    """`config` with the threads of a run, unless it names some itself; with CUDA its rounds are fused if they can be.

    A run that asks for fused rounds and cannot have them makes its rounds one by one.
    """
    threads, can = config.runtime.threads or compute.threads, fuses and not why_not(config)
    runtime = msgspec.structs.replace(config.runtime, threads=threads)
    if can and compute.cuda and runtime.kind == "simulate":
        runtime = msgspec.structs.replace(runtime, kind="fused", accelerator="cuda")
    return fused_if_possible(msgspec.structs.replace(config, runtime=runtime), rounds=fuses)


def _write(file: Path, compute: Compute) -> None:
    """Keep the figures for the next call."""
    write_atomically(file, msgspec.json.format(msgspec.json.encode(compute), indent=2) + b"\n")


def _in_a_child(works: dict[str, Config], watch: Watch) -> dict[str, Any] | None:
    """Measure in one process of its own, whose peak memory is that of a run; `None` if stopped."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    texts = {key: configuration.render(work) for key, work in works.items()}
    child = context.Process(target=_measure, args=(sender, texts), daemon=True)
    child.start()
    sender.close()
    try:
        while not receiver.poll(0.1):
            if not watch(State("measuring each method's compute")):
                return None
        answer: dict[str, Any] | DpzvError = receiver.recv()
    except EOFError:
        child.join()
        raise DpzvError(f"measuring compute ended with exit code {child.exitcode}; memory may have run out.") from None
    finally:
        child.kill()
        child.join()
    if isinstance(answer, DpzvError):
        raise answer
    return answer


def _measure(sender: Connection, texts: dict[str, str]) -> None:
    """In the child: the seconds of each work, the data's D and M, and the peak memory."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    try:
        works = {key: configuration.parse(msgspec.toml.decode(text)) for key, text in texts.items()}
        sender.send(_costs(works))
    except DpzvError as error:
        sender.send(error)
    except Exception as error:
        sender.send(DpzvError(f"measuring compute failed with {type(error).__name__}: {error}; report it."))


def _costs(works: dict[str, Config]) -> dict[str, Any]:
    """Measure all works on the same data; what differs between them is the method and its settings."""
    import torch

    from dpzv.runtime.run import load_data

    torch.set_num_threads(max(1, cores() // 2))  # threads that wait for each other's core would be timed too
    data = load_data(next(iter(works.values())))
    seconds = {key: _seconds(work, data) for key, work in works.items()}
    share = 0.0
    if any(work.runtime.accelerator == "cuda" for work in works.values()):
        total = torch.cuda.get_device_properties(0).total_memory
        share = (torch.cuda.max_memory_reserved() + CONTEXT) / total
    return {
        "seconds": seconds,
        "D": len(data.y_train),
        "M": len(data.x_train),
        "bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "accelerator_share": share,
        "cuda": torch.cuda.is_available(),
    }


def _seconds(config: Config, data: Dataset) -> float:
    """Seconds of a device's upload and receive of one batch, averaged over devices.

    Of each device's batches the fastest counts: whatever else the machine does can only make one slower.
    """
    from dpzv.runtime.run_folder import RunFolder
    from dpzv.runtime.simulate import Simulation

    M = len(data.x_train)
    rounds = M * (1 + REPEATS)
    config = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, rounds=rounds))
    simulation = Simulation(config, data)
    watches = [_Stopwatch(device, config.runtime.accelerator) for device in simulation.devices]
    with tempfile.TemporaryDirectory() as place, simulation.opened(RunFolder(Path(place))):
        for repeat in range(1 + REPEATS):
            if repeat > AT_LEAST and sum(sum(watch.laps) for watch in watches) > ENOUGH:
                break
            for _ in range(M):
                simulation.round()
    return statistics.fmean(min(watch.laps[1:]) for watch in watches)


class _Stopwatch:
    """Times a device's `upload` and `receive`: one lap a batch."""

    def __init__(self, device: Device, accelerator: str) -> None:
        self.laps: list[float] = []
        self._accelerator = accelerator
        # the device's own entries hide the methods of its class, for this one object
        vars(device)["upload"] = self._timed(device.upload, new=True)
        vars(device)["receive"] = self._timed(device.receive, new=False)

    def _timed(self, method: Callable[..., Any], *, new: bool) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            self._wait()
            begin = time.perf_counter()
            answer = method(*arguments)
            self._wait()
            spent = time.perf_counter() - begin
            self.laps.append(spent if new else self.laps.pop() + spent)
            return answer

        return timed

    def _wait(self) -> None:
        if self._accelerator == "cuda":
            import torch

            torch.cuda.synchronize()  # kernels run on after a call returns
