"""Events: one kind of list that the account folds and the ledger charges, open to mechanisms nobody has thought of."""

from __future__ import annotations

import math
import sqlite3
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import Struct
from tests.plans import asked, cost_of, earlier

from dpzv.errors import PrivacyRefused
from dpzv.privacy.accountant import Composition, epsilon_of_parts, fold, gaussian_mu
from dpzv.privacy.events import Event, Gaussian, Pair, PlannedRelease, Releases, Start, unpacked
from dpzv.privacy.gdp import epsilon_of, paper_sigma_dp
from dpzv.privacy.head_steps import HeadSteps
from dpzv.privacy.ledger import Ledger
from dpzv.privacy.lineage import parents_of
from dpzv.privacy.plan import ParentRun, PrivacyPlan
from dpzv.privacy.planning import make_plan
from dpzv.privacy.record_names import UNNAMED
from dpzv.privacy.statement import read_ledger, spent


class Histogram(Event, Struct, frozen=True, kw_only=True, tag=True):
    """A made-up mechanism: noisy counts of labels. Replacing a record moves two of them, by sqrt(2) together."""

    bins: int
    sigma: float

    def pairs(self) -> tuple[Pair, ...]:
        """Removing a record moves one count by 1."""
        return (Gaussian(square=1 / self.sigma**2, replaced=math.sqrt(2)),)


COUNTS = Histogram(bins=10, sigma=25.0)


def with_counts() -> PrivacyPlan:
    plan = make_plan(asked())
    return msgspec.structs.replace(plan, events=(*plan.events, COUNTS))


def create(path: Path, plan: PrivacyPlan) -> Ledger:
    return Ledger.create(
        path,
        plan=plan,
        data_fingerprint="d",
        noise_source="exact",
        ids_of=lambda m, position: np.arange(plan.B),
    )


def test_a_new_mechanism_is_folded_without_a_change_in_the_account() -> None:
    plan = with_counts()
    for neighbours, factor in (("replace-one", 2.0), ("zero-out", 1.0)):
        mu = math.sqrt(factor**2 * plan.cap + factor / 25.0**2)  # sqrt(2)^2 is 2
        assert gaussian_mu(plan.cost, neighbours) == pytest.approx(mu, rel=1e-12)  # type: ignore[arg-type]
    mu = gaussian_mu(plan.cost, "replace-one")
    assert epsilon_of_parts(plan.cost, plan.delta_dp, "replace-one") == pytest.approx(epsilon_of(mu, 1e-6), rel=1e-8)
    assert fold(plan.claim).lattice == plan.cost.lattice > 0  # that of the releases


def test_a_factor_of_its_own_is_kept_apart() -> None:
    class Thrice(Event, Struct, frozen=True, kw_only=True, tag=True):
        def pairs(self) -> tuple[Pair, ...]:
            return (Gaussian(square=0.01, replaced=3.0),)

    cost = fold([Thrice(), Thrice(), Releases(cap=0.04, distance=0.0)])
    assert gaussian_mu(cost, "replace-one") == pytest.approx(math.sqrt(9 * 0.02 + 4 * 0.04))
    assert gaussian_mu(cost, "zero-out") == pytest.approx(math.sqrt(0.02 + 0.04))
    twice = Composition(gaussian=(Gaussian(square=1.0, replaced=2.0),) * 2)  # made by hand, nothing is lost
    assert gaussian_mu(twice, "zero-out") == pytest.approx(math.sqrt(2))


def test_a_new_mechanism_is_charged_once_and_read_back(tmp_path: Path) -> None:
    path, plan = tmp_path / "ledger.sqlite", with_counts()
    with create(path, plan) as ledger:
        for _ in range(2):
            ledger.charge(COUNTS)
        assert ledger.charged == [COUNTS]
        with pytest.raises(PrivacyRefused, match="as planned"):
            ledger.charge(msgspec.structs.replace(COUNTS, sigma=5.0))
    assert read_ledger(path).plan == plan
    (parent,) = parents_of([path], UNNAMED)
    assert parent.events == plan.claim
    child = make_plan(asked(epsilon=3.0, parents=(parent,)))
    assert child.mu_parents == pytest.approx(gaussian_mu(plan.cost, "replace-one"), rel=1e-6)
    assert unpacked(msgspec.msgpack.encode(child), PrivacyPlan) == child
    assert "Guarantee:   yes" in spent([path]).text()
    other = create(tmp_path / "other.sqlite", make_plan(asked()))
    with other, pytest.raises(PrivacyRefused, match="planned"):
        other.charge(COUNTS)  # this plan knows nothing of it


class NoEvent(Struct, frozen=True):
    """Looks like an event, but says nothing about what it costs."""

    sigma: float


class Odd(Event, Struct, frozen=True, kw_only=True, tag=True):
    """An event with a pair that the account cannot compose."""

    def pairs(self) -> tuple[Any, ...]:
        return ((0.5, 1.0),)


class Silent(Event, Struct, frozen=True, kw_only=True, tag=True):
    """An event that does not say what it costs."""


@pytest.mark.parametrize("unknown", [NoEvent(1.0), Odd(), "a release"])
def test_what_the_account_does_not_know_is_an_error(unknown: Any) -> None:
    with pytest.raises(PrivacyRefused, match="does not know"):
        fold([Releases(cap=0.1, distance=0.0), unknown])
    with pytest.raises(NotImplementedError):
        fold([Silent()])


def test_what_is_no_event_is_not_charged(tmp_path: Path) -> None:
    plan = make_plan(asked())
    with create(tmp_path / "ledger.sqlite", plan) as ledger:
        for other in (NoEvent(1.0), plan.release(t=1, m=1, position=0, B=plan.B)):
            with pytest.raises(PrivacyRefused, match="only charge an event"):
                ledger.charge(other)  # type: ignore[arg-type]
        assert ledger.charged == []


def test_an_event_of_an_unknown_kind_is_refused_wherever_it_is_read(tmp_path: Path) -> None:
    for value in ({"type": "Rumour", "mu": 1.0}, {}, [], "Start"):
        with pytest.raises(PrivacyRefused, match=r"known kind \(.*HeadSteps.*Start"):
            unpacked(msgspec.msgpack.encode(value), Event)
    plan = make_plan(asked(parents=(parent_of(earlier(releases=1e-4)),)))
    with pytest.raises(PrivacyRefused, match="known kind"):
        unpacked(msgspec.msgpack.encode(plan).replace(b"\xa8Releases", b"\xa6Rumour"), PrivacyPlan)
    path = tmp_path / "ledger.sqlite"
    create(path, plan).close()
    connection = sqlite3.connect(path)
    rumour = msgspec.msgpack.encode({"type": "Rumour"})
    connection.execute("INSERT INTO events (event) VALUES (?)", (rumour,))
    connection.commit()
    connection.close()
    with pytest.raises(PrivacyRefused, match="known kind"):
        read_ledger(path)


def parent_of(events: tuple[Event, ...]) -> ParentRun:
    return ParentRun(run_id="ab" * 16, noise_source="exact", events=events)


def test_events_of_all_kinds_come_back_bit_for_bit() -> None:
    events = (
        Releases(cap=0.1 + 0.2, distance=1e-30),
        Releases(cap=math.inf, distance=0.0),
        Start(m=3, mu=1 / 3, noise_multiplier=math.inf),
        HeadSteps(q=1e-300, z=math.pi, steps=10**9),
        COUNTS,
    )
    for event in events:
        assert unpacked(msgspec.msgpack.encode(event), Event) == event


def test_a_start_costs_at_least_what_its_noise_says() -> None:
    told = Start(m=0, mu=0.1, noise_multiplier=10.0 * (1 + 1e-6))
    assert fold([told]) == cost_of(starts=0.1**2)
    assert fold([msgspec.structs.replace(told, noise_multiplier=5.0)]) == cost_of(starts=0.2**2)
    assert fold([msgspec.structs.replace(told, noise_multiplier=0.0)]) == cost_of(starts=math.inf)


def test_the_factors_of_a_replaced_record_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other factors in the one place where they stand, every figure of a plan follows."""
    starts: dict[str, Any] = {"starts": ("dp-pca",), "start_share": 0.3, "head_rule": "dp-sgd", "head_batch": 500}
    request = asked(head_steps=4, **starts)
    before, published = make_plan(request), make_plan(asked(accounting="paper"))
    paper, joint = paper_sigma_dp(1.0, 10, 500, 0.3), gaussian_mu(before.cost, "replace-one")
    for name, factors in {"clip_factor": (5.0, 1.0), "outer_product_factor": (7.0, 1.0)}.items():
        for module in [found for key, found in sys.modules.items() if key.startswith("dpzv.") and hasattr(found, name)]:
            monkeypatch.setattr(module, name, lambda neighbours, factors=factors: factors[neighbours == "zero-out"])
    after = make_plan(request)
    assert after.sigma_dp == pytest.approx(before.sigma_dp * 5 / 2)
    assert after.cap == pytest.approx(before.cap * (2 / 5) ** 2)
    assert after.z == pytest.approx(before.z * 5 / 2, rel=1e-3)
    assert gaussian_mu(fold(after.events), "replace-one") == pytest.approx(joint, rel=1e-3)
    first, second = (next(e for e in plan.events if isinstance(e, Start)) for plan in (before, after))
    assert second.noise_multiplier == pytest.approx(first.noise_multiplier * 7 / math.sqrt(2))
    assert paper_sigma_dp(1.0, 10, 500, 0.3) == pytest.approx(paper * 5 / 2)
    assert make_plan(asked(accounting="paper")).epsilon_zero_out < published.epsilon_zero_out / 2


def test_a_single_release_is_no_list_of_releases() -> None:
    """What a release costs depends on who was in it before, which the counters know; the account folds its cap."""
    event = PlannedRelease(t=1, m=1, position=0, B=5, C=1.0, sigma_dp=1.0)
    with pytest.raises(PrivacyRefused, match="does not know"):
        fold([event])  # type: ignore[list-item]
