"""The convergence theorem: its lemmas against integrals, its terms, what it admits, and its rate on known problems."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpzv.errors import ConfigError
from dpzv.privacy.theory import (
    Bound,
    Constants,
    admissible_eta,
    admissible_lam,
    bound,
    clip_bias,
    clip_probability,
    corollary,
    gamma_1,
    least_clip,
    loss_bias,
    second_moment,
    smoothing_bias,
)
from dpzv.rng import numpy_generator

Array = NDArray[np.float64]

# The problem: record i has the loss log cosh(w[i mod d] - b_i), which is 1-smooth and 1-Lipschitz.
d, n, B = 2, 8, 4
TARGETS = np.linspace(1.5, 2.5, n)
START = float(np.mean(np.log(np.cosh(TARGETS))))  # F(0), and 0 is below F
KNOWN = Constants(F=START, L=1.0, l=1.0, sigma_s=1.0, d_0=0, d_m=(d,), tau=0, B=B)
C, SIGMA = 6.0, 1.0


def changed(**changes: Any) -> Constants:
    return dataclasses.replace(KNOWN, **changes)


def terms(found: Bound) -> dict[str, float]:
    values = dataclasses.asdict(found)
    return {name: value for name, value in values.items() if name not in ("clip_probability", "admissible")}


def sphere(d: int, n: int, *name: str | int) -> Array:
    """Directions [n, d] of norm sqrt(d); in two dimensions equally spaced, so that means over them are integrals."""
    if d == 2:
        angles = 2 * math.pi * (np.arange(n) + 0.5) / n
        return math.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    u = numpy_generator("theory", d, *name).standard_normal((n, d))
    return u * (math.sqrt(d) / np.linalg.norm(u, axis=1, keepdims=True))


# 1-smooth losses of rows of points, with their gradients
SMOOTH: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "quadratic": (lambda w: (w**2).sum(-1) / 2, lambda w: w),
    "cosine": (lambda w: np.cos(w).sum(-1), lambda w: -np.sin(w)),
    "log cosh": (lambda w: np.log(np.cosh(w)).sum(-1), np.tanh),
}


@pytest.mark.parametrize("lam", [0.05, 0.8])
@pytest.mark.parametrize("name", SMOOTH)
def test_the_lemma_on_smoothing_against_integrals(name: str, lam: float) -> None:
    """Bias of the loss and of the gradient, and E |g|^2; the quadratic shows that the bounds are not loose."""
    loss, gradient = SMOOTH[name]
    u = sphere(2, 2000)
    radii = np.sqrt((np.arange(400) + 0.5) / 400)  # uniform in the disc
    for w in np.array([[0.0, 0.0], [0.3, -1.1], [2.0, 1.0]]):
        disc = w + lam * radii[:, None, None] * u
        smoothed, slope = loss(disc).mean(), gradient(disc).mean((0, 1))
        assert abs(smoothed - loss(w)) <= loss_bias(1.0, lam, 2) * (1 + 1e-9)
        assert np.linalg.norm(slope - gradient(w)) <= smoothing_bias(1.0, lam, 2) * (1 + 1e-9)
        delta = (loss(w + lam * u) - loss(w - lam * u)) / (2 * lam)
        estimates = delta[:, None] * u
        assert estimates.mean(0) == pytest.approx(slope, abs=1e-5)  # the mean is the smoothed loss's gradient
        k = changed(sigma_s=0.0)
        most = second_moment(k, float((gradient(w) ** 2).sum()), d=2, lam=lam, C=math.inf, sigma_dp=0.0)
        assert (estimates**2).sum(1).mean() <= most
        if name == "quadratic":
            assert smoothed - loss(w) == pytest.approx(loss_bias(1.0, lam, 2) / 2, rel=1e-4)  # d / (d + 2)


@pytest.mark.parametrize("records", [1, 4, 64])
def test_the_second_moment_of_a_batch_that_shares_a_direction(records: int) -> None:
    """The paper divides the squared gradient by B, as if every record had a direction of its own."""
    d, lam, sigma_dp = 20, 1e-3, 0.3
    draw = numpy_generator("batch", records)
    u = sphere(d, 40_000, records)
    common = np.full(d, 0.5)
    spread = 0.2  # of a record's gradient in every coordinate; losses are linear, so L is as small as we like
    k = Constants(F=1, L=1e-9, l=10, sigma_s=spread * math.sqrt(d), d_0=0, d_m=(d,), tau=0, B=records)
    gradients = common + spread / math.sqrt(records) * draw.standard_normal((len(u), d))  # of the batch's mean
    G = ((gradients * u).sum(1) + sigma_dp * draw.standard_normal(len(u)))[:, None] * u
    seen, squared = float((G**2).sum(1).mean()), float((common**2).sum())
    most = second_moment(k, squared, d=d, lam=lam, C=math.inf, sigma_dp=sigma_dp)
    assert most / 2.1 < seen < most
    printed = (2 * d * squared + 2 * d * k.sigma_s**2) / records + sigma_dp**2 * d
    variance = seen - squared
    assert (variance <= printed) == (records == 1)


@pytest.mark.parametrize("clip", [0.5, 1.0, 2.5, 5.0])
def test_clipping_moves_the_mean_by_less_than_said(clip: float) -> None:
    """A linear loss: the difference is u.a, the smoothed gradient is a."""
    d = 30
    a = np.zeros(d)
    a[0] = 1.0
    u = sphere(d, 150_000, "clip")
    k = Constants(F=1, L=1e-9, l=1.0, sigma_s=0.0, d_0=0, d_m=(d,), tau=0, B=1)
    cut = np.clip(u @ a, -clip, clip)
    mean = (cut[:, None] * u).mean(0)
    noise = 5 * math.sqrt(d / len(u))
    assert np.linalg.norm(mean - a) <= clip_bias(k, 1e-3, clip, d) + noise
    P = float((np.abs(u @ a) > clip).mean())
    assert P <= clip_probability(k, 1e-3, clip)
    assert (cut**2).mean() * d <= second_moment(k, 1.0, d=d, lam=1e-3, C=clip, sigma_dp=0.0)


def test_clipping_shortens_each_record_by_its_own_share_and_can_turn_the_mean() -> None:
    """The paper's mean, (1 - P) grad F, has one P for all records. Here one steep record outweighs two others."""
    u = sphere(30, 200_000, "turn")
    slopes = np.array([10.0, -4.0, -4.0])
    deltas = u[:, :1] * slopes
    clipped = (np.clip(deltas, -1, 1).mean(1)[:, None] * u).mean(0)
    kept = (np.abs(deltas) < 1).mean(0)
    assert slopes.mean() > 0.6
    assert clipped[0] < -0.2
    assert clipped[0] == pytest.approx((kept * slopes).mean(), abs=0.05)
    assert 0.1 < kept.mean() < 0.2
    k = Constants(F=1, L=1e-9, l=10.0, sigma_s=7.0, d_0=0, d_m=(30,), tau=0, B=3)
    assert abs(clipped[0] - slopes.mean()) <= clip_bias(k, 1e-3, 1.0, 30)


def test_the_clip_bias_falls_with_the_clip_and_is_unknown_below_the_finite_difference() -> None:
    biases = [clip_bias(KNOWN, 0.1, clip, d) for clip in (0.2, 1.0, 3.0, 9.0, math.inf)]
    assert biases == sorted(biases, reverse=True)
    assert biases[-1] == 0
    assert clip_bias(KNOWN, 3.0, 0.5, d) == math.inf
    assert bound(KNOWN, T=100, eta=1e-4, lam=3.0, C=0.5, sigma_dp=0.0).total == math.inf


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
        lam = admissible_lam(KNOWN, T)
        eta = admissible_eta(KNOWN, T, lam=lam, C=C)
        assert eta == pytest.approx(1 / math.sqrt(T * d))
        promised = bound(KNOWN, T=T, eta=eta, lam=lam, C=C, sigma_dp=SIGMA)
        assert promised.admissible
        seen.append(mean_squared_gradient(T, eta, lam))
        assert seen[-1] <= promised.total
        bounds.append(promised.total - promised.clipping)  # the clip is fixed, and with it what it costs
    assert -0.58 < slope(rounds, seen) < -0.42
    assert slope(rounds, bounds) == pytest.approx(-0.5, abs=0.02)
    fixed = [mean_squared_gradient(T, 0.3, admissible_lam(KNOWN, T)) for T in rounds]
    assert slope(rounds, fixed) > -0.25


def quadratic_run(L: float, sizes: tuple[int, ...], q: tuple[float, ...], eta: float, T: int, delay: int = 0) -> float:
    """Mean squared gradient of L/2 |w|^2 with devices of these sizes, whose rounds use weights `delay` rounds old."""
    draw = numpy_generator("quadratic", *sizes, T, delay)
    ends = np.cumsum(sizes)
    w = np.ones(ends[-1])
    old = [w.copy()] * (delay + 1)
    total = 0.0
    for m in draw.choice(len(sizes), T, p=q):
        total += float(((L * w) ** 2).sum())
        part = slice(ends[m] - sizes[m], ends[m])
        u = draw.standard_normal(sizes[m])
        u *= math.sqrt(sizes[m]) / np.linalg.norm(u)
        w[part] -= eta * L * float(old[0][part] @ u) * u
        old = [*old[1:], w.copy()]
        if not math.isfinite(total) or total > 1e30:
            return math.inf
    return total / T


def test_the_printed_step_diverges_where_ours_converges() -> None:
    """A batch that shares its direction does not allow steps that grow with B."""
    L, d, records, T = 10.0, 100, 512, 100
    k = Constants(F=L * d / 2, L=L, l=1.0, sigma_s=0.0, d_0=0, d_m=(d,), tau=0, B=records)
    lam = admissible_lam(k, T)
    ours = admissible_eta(k, T, lam=lam, C=math.inf)
    printed = min(1 / math.sqrt(T * d), records / (4 * L * (records + 8 * d)))
    assert quadratic_run(L, (d,), (1.0,), printed, T) > 1e12
    seen = quadratic_run(L, (d,), (1.0,), ours, T)
    promised = bound(k, T=T, eta=ours, lam=lam, C=math.inf, sigma_dp=0.0)
    assert seen <= promised.total < 20 * seen
    assert not bound(k, T=T, eta=printed, lam=lam, C=math.inf, sigma_dp=0.0).admissible


@pytest.mark.parametrize("delay", [0, 1, 7])
def test_the_bound_holds_for_unequal_devices_with_delays(delay: int) -> None:
    sizes, q, L, T = (3, 40, 12), (0.2, 0.5, 0.3), 2.0, 3000
    k = Constants(F=L * sum(sizes) / 2, L=L, l=1.0, sigma_s=0.0, d_0=0, d_m=sizes, q_m=q, tau=delay, B=1)
    lam = admissible_lam(k, T)
    eta = admissible_eta(k, T, lam=lam, C=math.inf)
    promised = bound(k, T=T, eta=eta, lam=lam, C=math.inf, sigma_dp=0.0)
    assert promised.admissible
    seen = quadratic_run(L, sizes, q, eta, T, delay)
    assert promised.total / 40 < seen <= promised.total
    # neither the largest device everywhere nor equal shares give these figures
    for other in (dataclasses.replace(k, d_m=(40, 40, 40)), dataclasses.replace(k, q_m=())):
        noises = [bound(one, T=T, eta=eta / 9, lam=lam, C=math.inf, sigma_dp=1.0).noise for one in (k, other)]
        assert noises[1] != pytest.approx(noises[0], rel=0.05)


def test_every_term_answers_to_its_own_cause() -> None:
    base = terms(bound(KNOWN, T=1000, eta=0.01, lam=1e-4, C=C, sigma_dp=SIGMA))

    def moved(constants: Constants = KNOWN, **changes: float) -> dict[str, float]:
        settings: dict[str, Any] = {"T": 1000, "eta": 0.01, "lam": 1e-4, "C": C, "sigma_dp": SIGMA} | changes
        found = terms(bound(constants, **settings))
        return {name: found[name] / base[name] for name in found if found[name] != base[name]}

    assert moved(sigma_dp=2 * SIGMA) == pytest.approx({"noise": 4.0})
    assert moved(changed(F=2 * START)) == pytest.approx({"start": 2.0})
    assert moved(changed(sigma_s=3.0)) == pytest.approx({"sampling": 9.0})
    assert moved(changed(B=8)) == pytest.approx({"sampling": 0.5})
    assert moved(changed(d_m=(d, d))) == pytest.approx(dict.fromkeys(base, 2.0))  # each has half of the rounds
    assert moved(T=2000) == pytest.approx({"start": 0.5})
    assert set(moved(C=math.inf)) == {"clipping", "sampling", "smoothing"}
    assert moved(C=math.inf)["clipping"] == 0


def test_terms_by_hand() -> None:
    """Two devices and a server with delays, without a clip: the formulas of the proof, written out."""
    k = changed(tau=1, d_0=4, d_m=(3, 5), q_m=(0.25, 0.75), B=2, L=1.5)
    eta, T, lam, L = 0.004, 400, 1e-3, 1.5
    a = [4 * m for m in (4, 3, 5)]  # of the squared gradient, with delays
    q = [1, 0.25, 0.75]
    above = sum(w * (1.5 * eta * L**2 + L * eta**2 / 2 * L**2 * f) for w, f in zip(q, a, strict=True))
    gamma = above / (1 - eta**2 * L**2 * (q[1] * a[1] + q[2] * a[2]))
    assert gamma_1(k, eta, lam, math.inf) == pytest.approx(gamma)
    weights = [4 * eta * 4 * L / 2, 4 * eta * 0.25 * 3 * (L / 2 + gamma), 4 * eta * 0.75 * 5 * (L / 2 + gamma)]
    bias = [(L * lam) ** 2 * m**3 / 4 for m in (4, 3, 5)]
    squares = [(L * lam * m) ** 2 / 2 for m in (4, 3, 5)]
    found = bound(k, T=T, eta=eta, lam=lam, C=math.inf, sigma_dp=0.5)
    assert terms(found) == pytest.approx(
        {
            "start": 4 * START / (eta * T) / 0.25,
            "smoothing": (6 * np.dot(q, bias) + np.dot(weights, squares)) / 0.25,
            "sampling": sum(weights) * 2 / 2 / 0.25,
            "clipping": 0.0,
            "noise": sum(weights) * 0.25 / 0.25,
        }
    )


def test_what_is_admissible() -> None:
    k = changed(tau=2, d_0=10, d_m=(20, 20))
    for T in (10, 10_000, 10_000_000):
        lam = admissible_lam(k, T)
        eta = admissible_eta(k, T, lam=lam, C=20.0)
        limit = 1 / (2 * 4 * 20 * (1 + 2 * gamma_1(k, eta, lam, 20.0)))
        assert eta == pytest.approx(min(1 / math.sqrt(T * 20), limit), rel=1e-6)
        assert lam == 1 / (50 * math.sqrt(T))
        assert bound(k, T=T, eta=eta, lam=lam, C=20.0, sigma_dp=0.0).admissible
        assert not bound(k, T=T, eta=1.01 * eta, lam=lam, C=20.0, sigma_dp=0.0).admissible
        assert not bound(k, T=T, eta=eta, lam=1.01 * lam, C=20.0, sigma_dp=0.0).admissible
    assert admissible_eta(changed(tau=1000), 1, lam=0.1, C=20.0) < 1e-3  # long delays admit small steps only


@pytest.mark.parametrize("clip", [5.0, 6.0, 8.0])
def test_a_tight_clip_admits_smaller_steps(clip: float) -> None:
    """Without delays the limit for few rounds is 1 / (2 a L), a = 2 d (1 + sqrt(X)), X as in the bias of a clip."""
    k, lam = changed(d_0=0, d_m=(20,), L=3.0), 1e-4
    room = clip - 3.0 * lam * 20 / 2
    X = 2 * math.sqrt(2 * math.pi) * math.exp(-(room**2) / 8)
    assert X > 1e-3
    assert admissible_eta(k, 1, lam=lam, C=clip) == pytest.approx(1 / (2 * 2 * 20 * (1 + math.sqrt(X)) * 3.0), rel=1e-6)


def test_the_least_clip_is_where_clipping_stops_being_certain() -> None:
    lam = 1e-3
    least = least_clip(KNOWN, lam)
    assert clip_probability(KNOWN, lam, least) == pytest.approx(1.0)
    assert clip_probability(KNOWN, lam, 0.99 * least) == 1
    assert clip_probability(KNOWN, lam, 1.1 * least) < 0.8
    assert not bound(KNOWN, T=100, eta=0.01, lam=lam, C=0.9 * least, sigma_dp=0.0).admissible
    # the lemma holds: clipping is rarer than it says
    u = sphere(d, 20_000)
    for C_0 in (1.0, 1.3):
        assert np.mean(np.abs(u[:, 0]) >= C_0) <= 2 * math.sqrt(2 * math.pi) * math.exp(-(C_0**2) / 8)


def test_the_finite_difference_exceeds_the_slope_by_up_to_half_of_L_lam_d() -> None:
    """The lemma's statement; its proof in the paper has L lam / 2, which a loss of size d breaks."""
    d, lam = 50, 0.01
    u = sphere(d, 50)
    w = np.zeros(d)  # sign * x^2 / 2 is 1-smooth; its slope at 0 is 0
    loss = lambda x: (np.sign(x) * x**2).sum(-1) / 2  # noqa: E731
    one_sided = np.abs(u)  # all coordinates positive: the largest difference there is
    delta = (loss(w + lam * one_sided) - loss(w - lam * one_sided)) / (2 * lam)
    assert delta == pytest.approx(lam * d / 2)
    assert (delta > 10 * lam / 2).all()


def test_the_corollary_balances_noise_and_the_rest() -> None:
    """At the balanced T the bound is flat in T, and is of order sqrt(d) / (D mu); the printed T has sqrt(d) more."""
    found = corollary(changed(d_m=(60, 40)), C=2.0, D=10_000, mu=0.5)
    assert found.printed_rounds == pytest.approx(10 * found.rounds)
    assert found.rate == pytest.approx(10 / 5000)
    X = START + 1 / B + 4 / math.expm1(4)
    assert found.rounds == pytest.approx(X * (10_000 * 0.5 / 2) ** 2)

    def shape(T: float) -> float:
        return 10 * (X / math.sqrt(T) + (2.0 / (10_000 * 0.5)) ** 2 * math.sqrt(T))

    assert shape(found.rounds) <= min(shape(1.01 * found.rounds), shape(found.rounds / 1.01))
    assert 0.1 < shape(found.rounds) / found.rate < 10
    assert corollary(KNOWN, C=40.0, D=100, mu=1.0).rounds == pytest.approx((START + 1 / B) * (100 / 40) ** 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"L": 0.0},
        {"F": -1.0},
        {"q_m": (0.0,)},
        {"q_m": (1.5,)},
        {"q_m": (0.5, 0.5)},
        {"d_m": ()},
        {"d_m": (0,)},
        {"sigma_s": -1.0},
        {"tau": -1},
    ],
)
def test_bad_constants(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        changed(**changes)
