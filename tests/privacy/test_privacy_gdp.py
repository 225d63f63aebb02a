"""Gaussian DP in closed form against reference values, 60-digit arithmetic and its own inverses."""

from __future__ import annotations

import math
import subprocess
import sys

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzv.errors import ConfigError
from dpzv.privacy import gdp

MU_OF = [
    (1e-3, 0.1, 0.0574567476133),
    (1e-3, 0.5, 0.216913719248),
    (1e-3, 1, 0.388401248307),
    (1e-3, 5, 1.44960661424),
    (1e-3, 10, 2.46269292334),
    (1e-5, 0.1, 0.0325207840562),
    (1e-5, 1, 0.268051123211),
    (1e-5, 2, 0.50155168917),
    (1e-5, 10, 2.00044562043),
]
EPSILON_OF = [(0.1, 0.340669364684), (1, 4.37717809568), (2, 9.99725614643), (8, 65.3192198885)]

# what the published epsilon is for devices that know the batches (delta 1e-3, D = 60,000, replace-one)
TRUE_EPSILON = {
    0.1: {64: "6.41211", 128: "4.12035", 512: "1.75816", 2048: "0.767499", 60_000: "0.1"},
    0.5: {64: "41.761", 128: "24.7757", 512: "9.38041", 2048: "3.83214", 60_000: "0.5"},
    1: {64: "106.576", 128: "60.4933", 512: "21.0866", 2048: "8.09661", 60_000: "1"},
    5: {64: "1121.21", 128: "588.539", 512: "170.708", 2048: "54.1873", 60_000: "5"},
    10: {64: "3074.94", 128: "1585.25", 512: "436.801", 2048: "129.134", 60_000: "10"},
}

MUS = (1e-3, 4e-3, 0.03, 0.1, 0.25, 0.5, 0.500001, 0.8, 1.0, 2.5, 7.0, 20.0, 50.0)
DELTAS = (1e-12, 1e-9, 1e-6, 1e-5, 1e-3, 0.03, 0.1)
EPSILONS = (1e-3, 0.01, 0.1, 1.0, 3.0, 20.0, 300.0)

mus = st.floats(1e-3, 50)
deltas = st.floats(1e-12, 0.1)
epsilons = st.floats(1e-3, 100)


def oracle_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """The definition, as it stands, in 60 digits."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

        def upper(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        return upper(e / m - m / 2) - mpmath.exp(e) * upper(e / m + m / 2)


def test_where_the_margin_takes_all_of_delta_nothing_is_claimed() -> None:
    """At this mu the margin is exactly 1."""
    assert gdp.MARGIN * 1e12 == 1
    for mu in (1e12, 1e13, math.inf):
        assert gdp.epsilon_of(mu, 1e-5) == math.inf


@pytest.mark.parametrize(("delta_dp", "epsilon", "mu"), MU_OF)
def test_mu_of_reference(delta_dp: float, epsilon: float, mu: float) -> None:
    assert gdp.mu_of(epsilon, delta_dp) == pytest.approx(mu, rel=1e-9)


@pytest.mark.parametrize(("mu", "epsilon"), EPSILON_OF)
def test_epsilon_of_reference(mu: float, epsilon: float) -> None:
    assert gdp.epsilon_of(mu, 1e-5) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("published", TRUE_EPSILON)
def test_what_the_published_epsilon_is_in_truth(published: float) -> None:
    mu = gdp.mu_of(published, 1e-3)
    found = {B: f"{gdp.epsilon_of(gdp.true_mu_of_paper(mu, B, 60_000), 1e-3):.6g}" for B in TRUE_EPSILON[published]}
    assert found == TRUE_EPSILON[published]


@pytest.mark.parametrize("mu", MUS)
def test_epsilon_of_is_the_oracle_rounded_up(mu: float) -> None:
    for delta_dp in DELTAS:
        epsilon = gdp.epsilon_of(mu, delta_dp)
        assert oracle_delta(epsilon, mu) <= delta_dp
        if epsilon > 0:
            assert oracle_delta(epsilon * (1 - 1e-9), mu) > delta_dp  # so epsilon is right to 1e-9


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_mu_of_is_the_oracle_rounded_down(epsilon: float) -> None:
    for delta_dp in DELTAS:
        mu = gdp.mu_of(epsilon, delta_dp)
        assert oracle_delta(epsilon, mu) <= delta_dp
        assert oracle_delta(epsilon, mu * (1 + 1e-9)) > delta_dp
        assert gdp.epsilon_of(mu, delta_dp) <= epsilon


@pytest.mark.parametrize("mu", MUS)
def test_delta_of_keeps_the_margin_the_rounding_relies_on(mu: float) -> None:
    for tail in (-2.0, 0.0, 1.0, 3.0, 5.0, 7.5):
        epsilon = mu * (tail + mu / 2)
        if epsilon >= 0:
            truth = oracle_delta(epsilon, mu)
            assert abs(gdp.delta_of(epsilon, mu) - truth) <= 0.5 * gdp.MARGIN * max(1.0, mu) * truth


@settings(deadline=None)
@given(mu=mus, delta_dp=deltas, more=st.floats(1.001, 3))
def test_epsilon_grows_with_mu_and_falls_with_delta(mu: float, delta_dp: float, more: float) -> None:
    epsilon = gdp.epsilon_of(mu, delta_dp)
    larger = gdp.epsilon_of(mu * more, delta_dp)
    assert larger > epsilon or larger == epsilon == 0
    looser = gdp.epsilon_of(mu, delta_dp * more)
    assert looser < epsilon or looser == epsilon == 0


@settings(deadline=None)
@given(epsilon=epsilons, delta_dp=deltas, more=st.floats(1.001, 3))
def test_mu_grows_with_epsilon_and_delta(epsilon: float, delta_dp: float, more: float) -> None:
    mu = gdp.mu_of(epsilon, delta_dp)
    assert 0 < mu < gdp.mu_of(epsilon * more, delta_dp)
    assert mu < gdp.mu_of(epsilon, delta_dp * more)


@settings(deadline=None)
@given(mu=mus, delta_dp=deltas)
def test_inverses_round_to_the_safe_side(mu: float, delta_dp: float) -> None:
    epsilon = gdp.epsilon_of(mu, delta_dp)
    assert gdp.delta_of(epsilon, mu) <= delta_dp
    assert gdp.epsilon_of(gdp.mu_of(epsilon, delta_dp), delta_dp) <= epsilon


@settings(deadline=None)
@given(mu=mus, delta_dp=deltas)
def test_concentrated_dp_is_never_below_gaussian_dp(mu: float, delta_dp: float) -> None:
    epsilon = gdp.zcdp_epsilon_of(mu, delta_dp)
    assert epsilon >= gdp.epsilon_of(mu, delta_dp)
    assert gdp.zcdp_mu_of(epsilon, delta_dp) == pytest.approx(mu, rel=1e-9)
    assert gdp.zcdp_epsilon_of(gdp.zcdp_mu_of(epsilon, delta_dp), delta_dp) <= epsilon


def test_ends_of_the_range() -> None:
    assert gdp.mu_of(math.inf, 1e-5) == math.inf
    assert gdp.epsilon_of(math.inf, 1e-5) == math.inf
    assert gdp.epsilon_of(0.0, 1e-5) == 0
    assert gdp.delta_of(1.0, 0.0) == 0
    assert gdp.delta_of(1.0, math.inf) == 1
    assert gdp.delta_of(0.0, 1.0) == pytest.approx(math.erf(1 / math.sqrt(8)), rel=1e-12)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_risk_is_the_best_threshold_test(mu: float) -> None:
    """Against the trade-off curve computed point by point: thresholds are the most powerful tests."""
    thresholds = [mpmath.mpf(k) / 50 for k in range(-300, 301)]
    curve = [(1 - mpmath.ncdf(x), 1 - mpmath.ncdf(x - mu)) for x in thresholds]
    assert gdp.delta_of(0.0, mu) == pytest.approx(float(max(tpr - fpr for fpr, tpr in curve)), rel=2e-4)
    for fpr, tpr in curve[::60]:
        if 1e-6 < fpr < 0.999:
            assert gdp.tpr_at_fpr(mu, float(fpr)) == pytest.approx(float(tpr), rel=1e-9)


def test_published_rule() -> None:
    assert gdp.paper_sigma_dp(2.0, 400, 1000, 0.5) == 2 * 2.0 * 20 / (1000 * 0.5)


@pytest.mark.parametrize("call", [
    lambda: gdp.epsilon_of(-1.0, 1e-5),
    lambda: gdp.epsilon_of(math.nan, 1e-5),
    lambda: gdp.epsilon_of(1.0, 0.0),
    lambda: gdp.mu_of(-0.1, 1e-5),
    lambda: gdp.mu_of(1.0, 1.0),
    lambda: gdp.tpr_at_fpr(1.0, 0.0),
    lambda: gdp.delta_of(1.0, -1.0),
])  # fmt: skip
def test_bad_input(call: object) -> None:
    with pytest.raises(ConfigError):
        call()  # type: ignore[operator]


def test_import_is_light() -> None:
    """A calculator must start fast: importing gdp and planning pulls in neither numpy nor scipy nor torch."""
    code = "import sys, dpzv.privacy.gdp, dpzv.privacy.planning; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "dpzv.privacy.planning" in loaded
    assert loaded.isdisjoint({"numpy", "scipy", "torch"})
