"""How many functions one round passes through, and that `docs/architecture.md` names every file on the way."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.rules import trace
from tests.rules.picture import PAGE
from tests.rules.trace import Hop, steady

MOST = {"simulation": 71, "network": 102}
"""Two thirds of 107 and 154, as it was when these rounds were first counted."""


@cache
def hops(kind: str) -> list[Hop]:
    """The shortest of up to eight traces: on a busy machine parties wait for each other, which takes more functions."""
    traces: list[list[Hop]] = []
    while len(traces) < 8 and all(len(one) > MOST[kind] for one in traces):
        traces.append({"simulation": trace.simulation, "network": trace.network}[kind]())
    return min(traces, key=len)


@pytest.mark.parametrize("kind", MOST)
def test_the_trace_sees_a_round(kind: str) -> None:
    """Devices, server, codec, gate and ledger all take part in it."""
    assert {"protocol", "methods", "zo", "privacy", "runtime"} <= {file.split("/")[0] for file, _ in hops(kind)}


@pytest.mark.parametrize("kind", MOST)
def test_a_round_passes_few_functions(kind: str) -> None:
    assert len(hops(kind)) <= MOST[kind]


@pytest.mark.parametrize("kind", MOST)
def test_the_page_names_every_file_on_the_way(kind: str) -> None:
    page = PAGE.read_text()
    assert [file for file in dict(hops(kind)) if not re.search(rf"(?<![\w/]){re.escape(file)}", page)] == []


@pytest.mark.parametrize(
    ("kind", "sentence"), [("simulation", "passes {} of them"), ("network", "passes {} functions")]
)
def test_the_page_says_how_many_functions_a_round_passes(kind: str, sentence: str) -> None:
    assert sentence.format(len(hops(kind))) in PAGE.read_text()


def test_a_steady_round_is_what_most_rounds_do() -> None:
    a, b, c, d = (("file.py", name) for name in "abcd")
    rounds = [dict.fromkeys(one) for one in ([c, a, b], [a, c], [a, b, d], [b, a, c])]
    assert steady(rounds) == [c, a, b]


def example(boundary: str, inside: bool) -> list[list[str]]:
    """What is seen of two functions of the package, of which the first calls the second."""
    from dpzv.rng import numpy_generator, seed_of

    with trace.Watch(boundary, inside=inside) as watch:
        watch.begin()
        for _ in range(2):
            numpy_generator("trace", 1)
            seed_of("trace")
    return [[name for _, name in one if "<" not in name] for one in watch.rounds]


def test_calls_are_cut_into_rounds() -> None:
    assert example("numpy_generator", inside=True) == 2 * [["numpy_generator", "seed_of"]]
    assert example("seed_of", inside=True) == 4 * [["seed_of"]]
    later = [["seed_of"], ["seed_of", "numpy_generator"], ["seed_of"], ["seed_of"]]
    assert example("seed_of", inside=False) == later
    with pytest.raises(LookupError, match="nowhere"):
        example("nowhere", inside=True)
