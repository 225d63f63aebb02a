"""The mutation run itself: it kills an obvious mutant of a tiny package, reports a survivor, and is repeatable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.mutants import (
    EQUIVALENT,
    NAMED,
    ROOMS,
    Bench,
    Outcome,
    equivalent,
    named_mutants,
    nearest_first,
    report,
    run_tests,
)
from tests.rules.mutate import Mutant, choose, mutants
from tests.rules.tree import Module, Package, package

SOURCE = '''\
"""Größe."""
import os

SLACK = 0.5


def size(x, log, file):
    """A size."""
    if x < 0:
        raise ValueError(f"{x} < 0")
    log.info("size")
    os.fsync(file)
    return seed_of("noise", x) + x * (1 + SLACK)
'''


def found(kind: str) -> list[str]:
    return [mutant.key.split(": ", 1)[1] for mutant in mutants(Module("zo/a.py", SOURCE)) if mutant.kind == kind]


def test_the_kinds_of_mutants() -> None:
    assert found("comparison") == ["x < 0 => (x <= 0)", "x < 0 => (x >= 0)"]
    assert found("guard") == ["x < 0 => False"]
    assert found("call") == ["os.fsync(file) => pass"]
    assert found("stream") == ["\"noise\" => 'noise-other'"]
    assert found("factor") == ["x * (1 + SLACK) => (x)"]
    assert found("number") == ["0.5 => 1.0", "0 => 1", "1 => 2"]
    assert "1 + SLACK => (1 - SLACK)" in found("arithmetic")


def everything() -> list[Mutant]:
    return [mutant for module in package() if module.room in ROOMS for mutant in mutants(module)]


def test_mutants_of_the_package_are_python() -> None:
    texts = {module.path: module.text for module in package()}
    for mutant in choose(everything(), 300, seed=0):
        changed = mutant.applied(texts[mutant.path])
        assert changed != texts[mutant.path]
        compile(changed, mutant.path, "exec", dont_inherit=True)


def test_the_sample_is_the_same_for_the_same_seed() -> None:
    one, again, other = (choose(everything(), 60, seed) for seed in (0, 0, 1))
    assert one == again != other
    assert len(set(one)) == 60
    assert {mutant.kind for mutant in one} == {mutant.kind for mutant in everything()}


def test_the_named_mutants_are_found() -> None:
    assert len(named_mutants(package(), NAMED)) == len(NAMED)


@pytest.mark.parametrize("old", ["y = 1", "x = 1"])
def test_a_named_mutant_whose_text_is_gone_or_stands_twice_is_refused(old: str) -> None:
    with pytest.raises(SystemExit, match="exactly one place"):
        named_mutants(Package({"a.py": "x = 1\n", "b.py": "x = 1\n"}), {"name": (old, "x = 2")})


def test_the_list_of_equivalent_mutants_gives_reasons() -> None:
    equivalent(EQUIVALENT.read_text())
    assert equivalent("# why\na: x => y\n    Same thing.\n") == {"a: x => y": "Same thing."}
    with pytest.raises(SystemExit, match="reason"):
        equivalent("a: x => y\nb: x => y\n    Same thing.\n")


TINY = """\
def seen(x):
    return x < 3


def unseen(x):
    return x > 3


def above(x):
    return x == 3
"""
TEST_SEEN = """\
from dpzv.zo.tiny import seen


def test_seen():
    assert seen(2) and not seen(3)
"""
TEST_ABOVE = """\
from dpzv.methods import above


def test_above():
    assert above(3)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A checkout with three functions: tested in their own room, tested in the room above, and not tested."""
    files = {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-q -rs'\nmarkers = ['soak']\n",
        "src/dpzv/__init__.py": "",
        "src/dpzv/zo/__init__.py": "",
        "src/dpzv/zo/tiny.py": TINY,
        "src/dpzv/methods/__init__.py": "from dpzv.zo.tiny import above\n",
        "tests/zo/test_tiny.py": TEST_SEEN,
        "tests/methods/test_above.py": TEST_ABOVE,
    }
    for path, text in files.items():
        (tmp_path / "tiny" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tiny" / path).write_text(text)
    return tmp_path / "tiny"


def test_a_mutant_is_killed_and_one_survives(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(tiny, tmp_path / "copies", jobs=2)
    assert bench.stages("zo") == ["tests/zo", "tests/methods"]
    bench.measure(["zo"])
    table = {
        "seen": ("x < 3", "x <= 3"),
        "unseen": ("x > 3", "x >= 3"),
        "above": ("x == 3", "x != 3"),
    }
    outcomes = bench.try_all(named_mutants(bench.source, table))
    verdicts = {outcome.mutant.kind: (outcome.verdict, outcome.by) for outcome in outcomes}
    assert verdicts == {
        "seen": ("killed", "tests/zo/test_tiny.py::test_seen"),
        "unseen": ("survived", ""),
        "above": ("killed", "tests/methods/test_above.py::test_above"),
    }
    assert report(outcomes, {}) == 1
    assert "no test notices: zo/tiny.py: x > 3 => x >= 3" in capsys.readouterr().out
    assert report(outcomes, {"zo/tiny.py: x > 3 => x >= 3": "Nobody asks."}) == 0
    # the checkout was not touched, and the copies are as they were
    for copy in (tiny, *(tmp_path / "copies").iterdir()):
        assert (copy / "src/dpzv/zo/tiny.py").read_text() == bench.source.modules["dpzv.zo.tiny"].text


def test_tests_that_fail_without_a_mutant_are_refused(tiny: Path, tmp_path: Path) -> None:
    (tiny / "tests/methods/test_above.py").write_text("def test_above():\n    assert False\n")
    with pytest.raises(SystemExit, match="tests/methods must pass"):
        Bench(tiny, tmp_path / "copies", jobs=1).measure(["zo"])


def test_tests_about_the_mutated_module_run_first(tiny: Path) -> None:
    for name, text in {"a": "", "b": "from dpzv.zo.tiny import seen\n", "zo_tiny": "", "zo_tiny_other": ""}.items():
        (tiny / f"tests/zo/test_{name}.py").write_text(text)
    names = "tiny", "zo_tiny", "b", "a", "zo_tiny_other"  # named after it, importing it, others
    assert nearest_first(tiny, "tests/zo", "zo/tiny.py") == [f"tests/zo/test_{name}.py" for name in names]
    assert nearest_first(tiny, "tests/methods/test_above.py", "zo/tiny.py") == ["tests/methods/test_above.py"]


def test_tests_that_do_not_end_are_stopped(tiny: Path) -> None:
    (tiny / "tests/zo/test_tiny.py").write_text("import time\ntime.sleep(600)\n")
    code, seconds, _ = run_tests(tiny, ["tests/zo"], limit=1.0)
    assert code is None
    assert seconds < 60


def test_a_survivor_must_be_listed_by_its_key() -> None:
    outcome = Outcome(Mutant("zo/a.py", 1, "number", "1", "2", 0, 1), "survived", "", 1.0)
    assert (report([outcome], {}), report([outcome], {"zo/a.py: 1 => 2": "why"})) == (1, 0)
