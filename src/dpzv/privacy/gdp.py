"""Gaussian differential privacy in closed form, rounded so that a claim is never too small.

A mu-GDP release reveals no more about a record than one draw from N(0, 1) or from N(mu, 1) does, and that is exactly
(epsilon, delta_dp)-DP with

    delta_dp = Phi(-a) - e^epsilon * Phi(-b)        a = epsilon/mu - mu/2        b = epsilon/mu + mu/2

The difference cancels badly. Because e^epsilon * phi(b) = phi(a), it equals phi(a) * (R(a) - R(b)) with the
Mills ratio R(x) = Phi(-x) / phi(x), which neither overflows nor underflows where it matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpzv.errors import ConfigError
from dpzv.sensitivity import clip_factor
from dpzv.validate import positive, probability, whole

__all__ = ["delta_of", "epsilon_of", "mu_of", "paper_sigma_dp", "tpr_at_fpr", "true_mu_of_paper", "zcdp_mu_of"]

# The relative error of `delta_of` is at most MARGIN * max(1, mu) (tested against 60 digits). The inverse functions aim
# at a delta_dp that is smaller by this much, `mu_of` by twice as much, so that `epsilon_of(mu_of(e, d), d) <= e`.
MARGIN = 1e-12

# Nodes and weights of the eight-point Gauss-Legendre rule on [0, 1]. For the smooth integrand below and mu <= 1/2 its
# error is no larger than rounding.
_NODES = (
    (0.019855071751231884, 0.05061426814518813),
    (0.10166676129318664, 0.11119051722668724),
    (0.2372337950418355, 0.15685332293894363),
    (0.4082826787521751, 0.181341891689181),
    (0.591717321247825, 0.181341891689181),
    (0.7627662049581645, 0.15685332293894363),
    (0.8983332387068134, 0.11119051722668724),
    (0.9801449282487681, 0.05061426814518813),
)
_SMALL_MU = 0.5
_HALF_SQRT_TAU = math.sqrt(math.pi / 2)
_SQRT_TAU = math.sqrt(2 * math.pi)


def delta_of(epsilon: float, mu: float) -> float:
    """The delta_dp at which mu-GDP gives `epsilon` (>= 0): the nearest value, not rounded to a safe side."""
    _not_negative("epsilon", epsilon)
    _not_negative("mu", mu)
    if mu == 0 or epsilon == math.inf:
        return 0.0 if mu < math.inf else 1.0
    if mu == math.inf:
        return 1.0
    middle = epsilon / mu
    a, b = middle - mu / 2, middle + mu / 2
    density = math.exp(-a * a / 2) / _SQRT_TAU
    if mu <= _SMALL_MU:
        # R(a) - R(b) is the integral of -R'(x) = 1 - x R(x), which is positive, over [a, b]
        return density * mu * sum(weight * (1 - (a + mu * x) * _mills(a + mu * x)) for x, weight in _NODES)
    return 0.5 * math.erfc(a / math.sqrt(2)) - density * _mills(b)


def epsilon_of(mu: float, delta_dp: float) -> float:
    """The epsilon that mu-GDP gives at `delta_dp`, rounded up.

    Formal guarantee: a mu-GDP mechanism is (epsilon_of(mu, delta_dp), delta_dp)-DP in exact arithmetic.
    """
    _not_negative("mu", mu)
    target = probability("delta_dp", delta_dp) * (1 - MARGIN * max(1.0, mu))
    if mu == math.inf or target <= 0:
        return math.inf
    if delta_of(0.0, mu) <= target:
        return 0.0
    log_target = math.log(target)

    def value_and_slope(epsilon: float) -> tuple[float, float]:
        delta = delta_of(epsilon, mu)
        if delta <= 0:
            return -math.inf, math.nan
        a = epsilon / mu - mu / 2
        slope = -math.exp(-a * a / 2) / _SQRT_TAU * _mills(a + mu)
        return math.log(delta) - log_target, slope / delta

    high = max(mu * mu, mu)
    while value_and_slope(high)[0] > 0:
        high *= 2
    return _root(value_and_slope, kept=high, other=0.0)


def mu_of(epsilon: float, delta_dp: float) -> float:
    """The largest mu whose guarantee at `delta_dp` is `epsilon`, rounded down; infinity for infinity.

    Formal guarantee: every mu_of(epsilon, delta_dp)-GDP mechanism is (epsilon, delta_dp)-DP, and
    ``epsilon_of(mu_of(epsilon, delta_dp), delta_dp) <= epsilon``.
    """
    _not_negative("epsilon", epsilon)
    probability("delta_dp", delta_dp)
    if epsilon == math.inf:
        return math.inf

    def value_and_slope(mu: float) -> tuple[float, float]:
        delta = delta_of(epsilon, mu)
        if delta <= 0:
            return -math.inf, math.nan
        a = epsilon / mu - mu / 2
        target = delta_dp * (1 - 2 * MARGIN * max(1.0, mu))
        if target <= 0:
            return math.inf, math.nan
        return math.log(delta) - math.log(target), math.exp(-a * a / 2) / _SQRT_TAU / delta

    low = 1.0
    while value_and_slope(low)[0] > 0:
        low /= 2
    high = 2 * low
    while value_and_slope(high)[0] <= 0:
        low, high = high, 2 * high
    return _root(value_and_slope, kept=low, other=high)


def zcdp_epsilon_of(mu: float, delta_dp: float) -> float:
    """An epsilon of (mu^2/2)-zCDP at `delta_dp`, mu^2/2 + mu sqrt(2 log(1/delta_dp)), rounded up.

    Noise on integers has exactly this concentrated DP, whatever its scale; the figure is a little looser than mu-GDP's.
    """
    _not_negative("mu", mu)
    return mu * (mu / 2 + math.sqrt(-2 * math.log(probability("delta_dp", delta_dp)))) * (1 + MARGIN)


def zcdp_mu_of(epsilon: float, delta_dp: float) -> float:
    """The mu whose `zcdp_epsilon_of` is `epsilon`, rounded down."""
    _not_negative("epsilon", epsilon)
    half = -math.log(probability("delta_dp", delta_dp))
    # sqrt(2 half + 2 epsilon) - sqrt(2 half), without the cancellation
    return 2 * epsilon / (math.sqrt(2 * half + 2 * epsilon) + math.sqrt(2 * half)) * (1 - 4 * MARGIN)


def tpr_at_fpr(mu: float, fpr: float) -> float:
    """Largest true-positive rate of any test with false-positive rate `fpr` against a mu-GDP release."""
    from scipy.special import ndtr, ndtri

    _not_negative("mu", mu)
    return float(ndtr(ndtri(probability("fpr", fpr)) + mu))


def paper_sigma_dp(C: float, T: int, D: int, mu: float) -> float:
    """The published noise rule, 2 C sqrt(T) / (D mu); it gives no guarantee against curious devices."""
    moved = clip_factor("replace-one") * positive("C", C)
    return moved * math.sqrt(whole("T", T, 0)) / (whole("D", D, 1) * positive("mu", mu))


def true_mu_of_paper(mu_paper: float, B: int, D: int) -> float:
    """The least mu (replace-one) of the published rule against devices, which know the batches."""
    return mu_paper * math.sqrt(whole("D", D, 1) / whole("B", B, 1))


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{name} must be 0 or more, got {value}; change {name}.")


def _mills(x: float) -> float:
    """Phi(-x) / phi(x)."""
    # imported here because scipy costs more than the rest of the program's start
    from scipy.special import erfcx

    return _HALF_SQRT_TAU * float(erfcx(x / math.sqrt(2)))


def _root(value_and_slope: Callable[[float], tuple[float, float]], *, kept: float, other: float) -> float:
    """The root between `kept` (value at or below 0) and `other` (above 0), rounded towards `kept`.

    It takes Newton steps, and halves the bracket where a Newton step would leave it. In the end it moves x by a few
    units in the last place, to the side where the value is not above 0.
    """
    safe = kept
    x = (kept + other) / 2
    for _ in range(200):
        value, slope = value_and_slope(x)
        if value <= 0:
            kept = x
        else:
            other = x
        step = x - value / slope if slope and math.isfinite(value) else math.nan
        if abs(step - x) <= 4e-16 * abs(x):
            break
        x = step if min(kept, other) < step < max(kept, other) else (kept + other) / 2
    back = math.ulp(x)
    while value_and_slope(x)[0] > 0:
        x += math.copysign(back, safe - x)
        back *= 2
    return x
