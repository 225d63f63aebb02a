"""The convergence theorem: its terms, what it admits, and its rate on a problem whose constants are known."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from dpzv.errors import ConfigError
from dpzv.privacy.theory import (
    Bound,
    Constants,
    admissible_eta,
    admissible_lam,
    bound,
    clip_probability,
    corollary_rounds,
    gamma_1,
    least_clip,
)
from dpzv.rng import numpy_generator

# The problem: record i has the loss log cosh(w[i mod d] - b_i), which is 1-smooth and 1-Lipschitz.
d, n, B = 2, 8, 4
TARGETS = np.linspace(1.5, 2.5, n)
START = float(np.mean(np.log(np.cosh(TARGETS))))  # F(0), and 0 is below F
KNOWN = Constants(F=START, L=1.0, l=1.0, sigma_s=1.0, d=d, d_0=0, d_m=d, q_m=1.0, tau=0, B=B)
C, SIGMA = 6.0, 1.0


def changed(**changes: Any) -> Constants:
    return dataclasses.replace(KNOWN, **changes)


def terms(found: Bound) -> dict[str, float]:
    values = dataclasses.asdict(found)
    return {name: value for name, value in values.items() if name not in ("clip_probability", "admissible")}


def mean_squared_gradient(T: int, eta: float, lam: float, repeats: int = 24) -> float:
    """Run the method as the theorem describes it, `repeats` times side by side."""
    draw = numpy_generator("theory", T)
    X = np.tile(np.eye(d), (n // d, 1))
    w = np.zeros((repeats, d))
    total = 0.0
    for _ in range(T):
        rest = w @ X.T - TARGETS
        total += float(np.mean(np.sum((np.tanh(rest) @ X / n) ** 2, axis=1)))
        u = draw.standard_normal((repeats, d))
        u *= math.sqrt(d) / np.linalg.norm(u, axis=1, keepdims=True)
        ids = draw.integers(0, n, (repeats, B))
        at, move = np.take_along_axis(rest, ids, 1), lam * np.take_along_axis(u @ X.T, ids, 1)
        delta_zo = (np.logaddexp(at + move, -at - move) - np.logaddexp(at - move, move - at)) / (2 * lam)
        Delta = np.clip(delta_zo, -C, C).mean(axis=1) + SIGMA * draw.standard_normal(repeats)
        w -= eta * Delta[:, None] * u
    return total / T


def slope(rounds: list[int], values: list[float]) -> float:
    return float(np.polyfit(np.log(rounds), np.log(values), 1)[0])


def test_the_predicted_rate_is_seen_and_the_bound_holds() -> None:
    """1/sqrt(T) with eta = 1/sqrt(T d); a step that does not shrink with T is told apart."""
    rounds = [300, 1200, 4800]
    seen, bounds = [], []
    for T in rounds:
        eta, lam = admissible_eta(KNOWN, T), admissible_lam(KNOWN, T)
        assert eta == pytest.approx(1 / math.sqrt(T * d))
        promised = bound(KNOWN, T=T, eta=eta, lam=lam, C=C, sigma_dp=SIGMA)
        assert promised.admissible
        seen.append(mean_squared_gradient(T, eta, lam))
        bounds.append(promised.total)
        assert seen[-1] <= promised.total
    assert -0.58 < slope(rounds, seen) < -0.42
    assert slope(rounds, bounds) == pytest.approx(-0.5, abs=0.02)
    fixed = [mean_squared_gradient(T, 0.3, admissible_lam(KNOWN, T)) for T in rounds]
    assert slope(rounds, fixed) > -0.25


def test_every_term_answers_to_its_own_cause() -> None:
    base = terms(bound(KNOWN, T=1000, eta=0.01, lam=1e-4, C=C, sigma_dp=SIGMA))

    def moved(constants: Constants = KNOWN, **changes: float) -> dict[str, float]:
        settings: dict[str, Any] = {"T": 1000, "eta": 0.01, "lam": 1e-4, "C": C, "sigma_dp": SIGMA} | changes
        found = terms(bound(constants, **settings))
        return {name: found[name] / base[name] for name in found if found[name] != base[name]}

    assert moved(sigma_dp=2 * SIGMA) == pytest.approx({"noise": 4.0})
    assert moved(changed(F=2 * START)) == pytest.approx({"start": 2.0})
    assert moved(changed(sigma_s=3.0)) == pytest.approx({"sampling": 9.0})
    assert moved(changed(q_m=0.5)) == pytest.approx(dict.fromkeys((k for k in base if base[k]), 2.0))
    assert moved(T=2000) == pytest.approx({"start": 0.5, "zo": 0.5, "smoothing": 0.5})
    assert moved(eta=0.02) == pytest.approx({"start": 0.5, "smoothing": 0.5, "sampling": 2, "clipping": 2, "noise": 2})


def test_terms_by_hand() -> None:
    k = changed(tau=1, d=10, d_0=4, d_m=3, q_m=0.25, B=2)
    eta, T = 0.01, 400
    gamma = 2 * eta * (0.5 + 2 * eta) / (1 - eta**2)
    assert gamma_1(k, eta) == pytest.approx(gamma)
    found = bound(k, T=T, eta=eta, lam=1e-5, C=math.inf, sigma_dp=0.5)
    assert found.clip_probability == found.clipping == 0
    assert terms(found) == pytest.approx(
        {
            "start": 8 * START / (eta * T) / 0.25,
            "zo": 2 * 3 / T / 0.25,
            "smoothing": 8 / (10 * eta * T) / 0.25,
            "sampling": 16 * eta * (4 + 2 * gamma) * 3 / 2 / 0.25,
            "smoothing_noise": 4 * eta * (2 + 4 * gamma) * 3 / (2 * T) / 0.25,
            "clipping": 0.0,
            "noise": 16 * eta * (2 + gamma) * 0.25 * 3 / 0.25,
        }
    )


def test_what_is_admissible() -> None:
    k = changed(tau=2, d=50, d_0=10, d_m=20)
    for T in (10, 10_000, 10_000_000):
        eta = admissible_eta(k, T)
        limit = B / (4 * (B + 8 * 20) + 8 * gamma_1(k, eta) * (2 * 20 + B))
        assert eta == pytest.approx(min(1 / math.sqrt(T * 20), limit), rel=1e-9)
        assert eta <= limit * (1 + 1e-12)
        lam = admissible_lam(k, T)
        assert lam == 1 / (50 * math.sqrt(T))
        assert bound(k, T=T, eta=eta, lam=lam, C=10.0, sigma_dp=0.0).admissible
        assert not bound(k, T=T, eta=1.01 * eta, lam=lam, C=10.0, sigma_dp=0.0).admissible
        assert not bound(k, T=T, eta=eta, lam=1.01 * lam, C=10.0, sigma_dp=0.0).admissible
    assert admissible_eta(changed(tau=1000), 1) < 1e-3  # long delays admit small steps only


def test_the_least_clip_is_where_clipping_stops_being_certain() -> None:
    lam = 1e-3
    least = least_clip(KNOWN, lam)
    assert clip_probability(KNOWN, lam, least) == pytest.approx(1.0)
    assert clip_probability(KNOWN, lam, 0.99 * least) == 1
    assert clip_probability(KNOWN, lam, 1.1 * least) < 0.8
    assert math.isinf(bound(KNOWN, T=100, eta=0.01, lam=lam, C=0.9 * least, sigma_dp=0.0).total)
    # the lemma holds: clipping is rarer than it says
    draw = numpy_generator("clip")
    u = draw.standard_normal((20_000, d))
    u *= math.sqrt(d) / np.linalg.norm(u, axis=1, keepdims=True)
    for C_0 in (1.0, 1.3):
        assert np.mean(np.abs(u[:, 0]) >= C_0) <= 2 * math.sqrt(2 * math.pi) * math.exp(-(C_0**2) / 8)


def test_the_corollary_balances_noise_and_the_rest() -> None:
    """At the balanced T the bound is flat in T, and is of order sqrt(d) / (D mu); the printed T has sqrt(d) more."""
    printed, balanced = corollary_rounds(changed(d=100, d_m=100), C=2.0, D=10_000, mu=0.5)
    assert printed == pytest.approx(10 * balanced)
    X = START + 1 / B + 4 / math.expm1(4)
    assert balanced == pytest.approx(X * (10_000 * 0.5 / 2) ** 2)

    def shape(T: float) -> float:
        return X / math.sqrt(T) + (2.0 / (10_000 * 0.5)) ** 2 * math.sqrt(T)

    assert shape(balanced) <= min(shape(1.01 * balanced), shape(balanced / 1.01))
    assert corollary_rounds(KNOWN, C=40.0, D=100, mu=1.0)[1] == pytest.approx((START + 1 / B) * (100 / 40) ** 2)


@pytest.mark.parametrize(
    "changes", [{"L": 0.0}, {"F": -1.0}, {"q_m": 0.0}, {"q_m": 1.5}, {"d_m": 3}, {"sigma_s": -1.0}, {"tau": -1}]
)
def test_bad_constants(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        changed(**changes)
