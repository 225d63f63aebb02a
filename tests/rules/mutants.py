"""``make mutants``: do the tests notice when the source is wrong?

Named mutants (`NAMED`) and a sample of all mutants of `ROOMS` are put, one at a time, into copies of the checkout. The
tests of the mutated room run first, then those of the rooms above it (but for `WITHOUT`), up to the first failure; of
each folder those files first that are about the mutated module. A mutant that passes all of them has survived: the
command ends with 1 unless `EQUIVALENT` lists it with a reason.

This is a runner of our own because the known ones do not fit. mutmut 3 changes functions only, no constants of modules,
and tests its mutants in forks of one process, in which torch and gRPC are not safe; cosmic-ray's local runs change the
checkout itself. Neither draws a sample by a seed or knows the guards, the slack factors and the names of random streams
that privacy rests on, and with two cores and tests of several minutes a sample is all there is time for.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.rules.mutate import Mutant, choose, mutants
from tests.rules.tree import PACKAGE, Package, read

NAMED: dict[str, tuple[str, str]] = {
    "z guard": ("if (began.z, began.sigma_dp) != (now.z, now.sigma_dp):", "if False:"),
    "min_batch in the ledger": ("least = plan.min_batch if math.isfinite(plan.epsilon) else 1", "least = 1"),
    "slack on z": ("z=z * (1 + SUM_SLACK)", "z=z"),
    "artefact line of rivals' w_m": (
        "if any(method_facts(plan.method).backpropagates and plan.spends for plan in plans):",
        "if False:",
    ),
    "fsync of files and folders": ("os.fsync(opened)", "pass"),
    "joint-zo's head on device 1's stream": (
        'Directions(parts.head, parts.seed, "direction", 0)',
        'Directions(parts.head, parts.seed, "direction", 1)',
    ),
}
"""Mutants that must be killed, as (old text, new text). The old text must stand in exactly one place of the source."""

ROOMS = ("privacy", "zo", "methods", "protocol")
"""Where the sample is drawn from."""

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
BESIDE = {"runtime": ("golden",)}
"""Folders of tests that are not named after a room, and the room they belong to."""

WITHOUT = {"cli", "network"}
"""Rooms whose tests are not run: they start processes and wait for sockets, and would take longer than all others. What
the sampled rooms do wrong has to be noticed nearer to them."""

LEFT_OUT = (".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
"""What a copy of the checkout does not need."""


Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant; `by` names the tests that noticed it, or did not end."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float


@dataclass
class Bench:
    """Copies of a checkout in a temporary folder, one for each job, and how long each folder of tests takes there."""

    root: Path
    folder: Path
    jobs: int
    least_limit: float = 60.0
    """A folder of tests may take this many seconds, or three times as long as without a mutant."""

    source: Package = field(init=False)
    seconds: dict[str, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.source = read(self.root / "src")
        self._free: queue.Queue[Path] = queue.Queue()
        for job in range(self.jobs):
            copy = self.folder / f"copy-{job}"
            shutil.copytree(self.root, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
            self._free.put(copy)

    def tests_of(self, room: str) -> list[str]:
        """The folders of tests that belong to a room."""
        named = (f"tests/{room}", f"tests/test_{room}.py", *(f"tests/{name}" for name in BESIDE.get(room, ())))
        return [path for path in named if (self.root / path).exists()]

    def stages(self, room: str) -> list[str]:
        """The folders of tests for a mutant in `room`: its own, then those of all rooms above, the quick ones first."""
        rooms = self.source.rooms()
        above, grown = {room}, set[str]()
        while grown != above:
            grown, above = above, above | {other for other, imported in rooms.items() if imported & above}
        own = self.tests_of(room)
        later = {path for other in above - WITHOUT for path in self.tests_of(other)} - set(own)
        return own + sorted(later, key=lambda path: (self.seconds.get(path, 0.0), path))

    def measure(self, rooms: Iterable[str]) -> None:
        """Run all tests once without a mutant; they must pass, else every mutant would look killed."""
        paths = sorted({path for room in rooms for path in self.stages(room)})
        for path, (code, seconds, output) in zip(paths, self._each(paths, self._plain), strict=True):
            if code != 0:
                raise SystemExit(f"{path} must pass before mutants are tried, got exit code {code}:\n{output}")
            self.seconds[path] = seconds

    def try_all(self, chosen: Sequence[Mutant]) -> list[Outcome]:
        """The outcomes, in the order of the mutants; each is printed as it comes."""
        return self._each(chosen, self._try)

    def _each(self, items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(work, items))

    def _plain(self, path: str) -> tuple[int | None, float, str]:
        copy = self._free.get()
        try:
            return run_tests(copy, [path], limit=1800.0)
        finally:
            self._free.put(copy)

    def _try(self, mutant: Mutant) -> Outcome:
        copy = self._free.get()
        try:
            outcome = self._in_copy(mutant, copy)
        finally:
            self._free.put(copy)
        print(line_of(outcome), flush=True)
        return outcome

    def _in_copy(self, mutant: Mutant, copy: Path) -> Outcome:
        began, file = time.monotonic(), copy / "src" / PACKAGE / mutant.path
        text = file.read_text()
        put(file, mutant.applied(text))
        try:
            for path in self.stages(mutant.path.split("/")[0].removesuffix(".py")):
                limit = max(self.least_limit, 3 * self.seconds.get(path, 0.0))
                code, _, output = run_tests(copy, nearest_first(copy, path, mutant.path), limit)
                if code is None:
                    return Outcome(mutant, "timed out", path, time.monotonic() - began)
                if code != 0:
                    return Outcome(mutant, "killed", first_failure(output) or path, time.monotonic() - began)
            return Outcome(mutant, "survived", "", time.monotonic() - began)
        finally:
            put(file, text)


def put(file: Path, text: str) -> None:
    """Write a source file, and drop its compiled form: Python would take it for the same within a second."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    file.write_text(text)


def nearest_first(copy: Path, path: str, module: str) -> list[str]:
    """The files of tests in `path`: first those named after the module, then those that import it, then the others."""
    stem = Path(module).stem
    import_of = f"{PACKAGE}.{module.removesuffix('.py').replace('/', '.')} import"

    def far(file: Path) -> tuple[bool, bool, str]:
        return not file.stem.endswith(f"_{stem}"), import_of not in file.read_text(), str(file)

    files = sorted((copy / path).rglob("test_*.py"), key=far) if (copy / path).is_dir() else [copy / path]
    return [str(file.relative_to(copy)) for file in files]


def run_tests(copy: Path, paths: Sequence[str], limit: float) -> tuple[int | None, float, str]:
    """The exit code of the tests in `paths` (`None` if they were stopped), how long they ran, and what they said."""
    own = copy.with_name(f"{copy.name}-temporary")  # sessions that share a folder clean up after each other, and fail
    options = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", f"--basetemp={own}", "-m", "not soak"]
    command = [sys.executable, "-m", "pytest", *options, *paths]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = child.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # its own children too
                child.wait()
        output.seek(0)
        return code, time.monotonic() - began, output.read()


def first_failure(output: str) -> str:
    """The test that pytest's summary names first."""
    named = [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return named[0] if named else ""


def named_mutants(source: Package, table: dict[str, tuple[str, str]]) -> list[Mutant]:
    """The mutants of a table such as `NAMED`; refused if an old text does not stand in exactly one place."""
    found = []
    for name, (old, new) in table.items():
        places = [(module, module.text.index(old)) for module in source for _ in range(module.text.count(old))]
        if len(places) != 1:
            raise SystemExit(
                f"mutant '{name}': its old text must stand in exactly one place of src, found {len(places)}; "
                f"write what the code says now into NAMED. The text is: {old}"
            )
        module, index = places[0]
        start = len(module.text[:index].encode())
        line = module.text.count("\n", 0, index) + 1
        found.append(Mutant(module.path, line, name, old, new, start, start + len(old.encode())))
    return found


def equivalent(text: str) -> dict[str, str]:
    """Mutants that no test can kill, by their keys, with the reason: two lines each, the second indented."""
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if line.startswith("    "):
            found[key] = line.strip()
        elif line and not line.startswith("#"):
            key = line
            found[key] = ""
    missing = [key for key, reason in found.items() if not reason]
    if missing:
        raise SystemExit(f"a mutant that may survive needs a reason on the line below it, got none for: {missing[0]}")
    return found


def line_of(outcome: Outcome) -> str:
    """An outcome as a line for people."""
    mutant = outcome.mutant
    what = f"{outcome.verdict:9} {outcome.seconds:4.0f} s  {mutant.kind}, line {mutant.line} of {mutant.key}"
    return f"{what}  [{outcome.by}]" if outcome.by else what


def report(outcomes: Sequence[Outcome], allowed: dict[str, str]) -> int:
    """Print what survived, and return the exit code."""
    counted = Counter(outcome.verdict for outcome in outcomes)
    print(", ".join(f"{counted[verdict]} {verdict}" for verdict in ("killed", "timed out", "survived")))
    bad = [outcome for outcome in outcomes if outcome.verdict == "survived" and outcome.mutant.key not in allowed]
    for outcome in bad:
        print(f"no test notices: {outcome.mutant.key}")
    return 1 if bad else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the named mutants and a sample; 0 if all that survive are known to be equivalent."""
    parser = argparse.ArgumentParser(prog="make mutants", description="Do the tests notice wrong source?")
    parser.add_argument("--number", type=int, default=60, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants tried at a time")
    asked = parser.parse_args(arguments)
    allowed = equivalent(EQUIVALENT.read_text())
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(ROOT, Path(folder), asked.jobs)
        found = [mutant for module in bench.source if module.room in ROOMS for mutant in mutants(module)]
        chosen = named_mutants(bench.source, NAMED) + choose(found, asked.number, asked.seed)
        print(f"{len(chosen)} of {len(found)} mutants; first all tests without one", flush=True)
        bench.measure({mutant.path.split("/")[0].removesuffix(".py") for mutant in chosen})
        print("  ".join(f"{path} {seconds:.0f} s" for path, seconds in bench.seconds.items()), flush=True)
        return report(bench.try_all(chosen), allowed)


if __name__ == "__main__":
    sys.exit(main())
