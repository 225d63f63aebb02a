"""The paper's convergence theorem in numbers: its bound term by term, what it admits, and the corollary's rounds.

The constants are those of the proof, before they vanish in O(.). Four places of the paper are read as the proof needs
them, each marked below: the sign in the least clip, the dimension in the largest step, the power of T in the fifth
term, and the dimension in the corollary's T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpzv.errors import ConfigError
from dpzv.validate import positive, whole

__all__ = ["Bound", "Constants", "admissible_eta", "admissible_lam", "bound", "corollary_rounds", "least_clip"]

# A record's difference is clipped with probability at most this times exp(-C_0^2 / (8 l^2)).
_CLIP_FACTOR = 2 * math.sqrt(2 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the theorem assumes of a problem and of the run.

    F: expected decrease of the loss over the run, at most F(w^0) minus its infimum. L, l: smoothness and Lipschitz
    constant of every record's loss. sigma_s: standard deviation of a record's gradient. d, d_0, d_m: numbers of all
    parameters, of w_0, and of the largest device. q_m: least participation probability of a device (those of all
    devices sum to 1). tau: largest delay in rounds. B: batch.
    """

    F: float
    L: float
    l: float  # noqa: E741 (the paper's letter)
    sigma_s: float
    d: int
    d_0: int
    d_m: int
    q_m: float
    tau: int
    B: int

    def __post_init__(self) -> None:
        for name in ("F", "L", "l"):
            positive(name, getattr(self, name))
        for name, least in (("d", 1), ("d_0", 0), ("d_m", 1), ("tau", 0), ("B", 1)):
            whole(name, getattr(self, name), least)
        if not 0 < self.q_m <= 1 or self.sigma_s < 0 or self.d < max(self.d_0, self.d_m):
            raise ConfigError(
                f"expected 0 < q_m <= 1, sigma_s >= 0 and d >= d_0, d_m, got q_m={self.q_m:g}, "
                f"sigma_s={self.sigma_s:g}, d={self.d}; check the constants."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A bound on the mean over rounds of the squared gradient norm: the sum of its terms.

    Each term has one cause. start: the distance of the start. zo: the bias of two-point estimates. smoothing: the
    smoothed loss. sampling: the batches. smoothing_noise: both of these together. clipping: what is clipped away.
    noise: the privacy noise. Each is already divided by `1 - clip_probability`. `admissible` is whether eta, lam and C
    are as the theorem asks.
    """

    start: float
    zo: float
    smoothing: float
    sampling: float
    smoothing_noise: float
    clipping: float
    noise: float
    clip_probability: float
    admissible: bool

    @property
    def total(self) -> float:
        """The bound."""
        terms = (self.start, self.zo, self.smoothing, self.sampling, self.smoothing_noise, self.clipping, self.noise)
        return math.fsum(terms)


def gamma_1(constants: Constants, eta: float) -> float:
    """The weight of the newest delay in the proof's Lyapunov function; infinite if eta is too large."""
    L, tau = constants.L, constants.tau
    left = 1 - (tau * eta * L) ** 2
    return tau**2 * 2 * eta * L * (0.5 + 2 * eta * L**2) / left if left > 0 else math.inf


def admissible_eta(constants: Constants, T: int) -> float:
    """The largest step size the theorem admits for `T` rounds.

    The condition bounds eta by a falling function of eta itself, through `gamma_1`, so the largest is found by
    bisection and rounded down.
    """
    low, high = 0.0, 1 / math.sqrt(whole("T", T, 1) * constants.d_m)
    if high <= _eta_limit(constants, high):
        return high
    for _ in range(200):
        middle = (low + high) / 2
        if middle <= _eta_limit(constants, middle):
            low = middle
        else:
            high = middle
    return low


def admissible_lam(constants: Constants, T: int) -> float:
    """The largest smoothing the theorem admits for `T` rounds: 1 / (L d sqrt(T))."""
    return 1 / (constants.L * constants.d * math.sqrt(whole("T", T, 1)))


def least_clip(constants: Constants, lam: float) -> float:
    """The clip above which the clipping probability is below 1: L lam d / 2 + l sqrt(8 log(2 sqrt(2 pi))).

    The paper prints a minus, but its lemma needs C >= C_0 + L lam d / 2 with a C_0 that makes the probability small.
    """
    return constants.L * lam * constants.d / 2 + constants.l * math.sqrt(8 * math.log(_CLIP_FACTOR))


def clip_probability(constants: Constants, lam: float, C: float) -> float:
    """Bound on the probability that a record's difference is clipped; 1 where the lemma says nothing."""
    room = C - constants.L * lam * constants.d / 2
    if room <= 0:
        return 1.0
    return min(1.0, _CLIP_FACTOR * math.exp(-((room / constants.l) ** 2) / 8))


def bound(constants: Constants, *, T: int, eta: float, lam: float, C: float, sigma_dp: float) -> Bound:
    """Theorem 1 with its constants, for these choices; infinite where clipping is not rare.

    `lam` enters the clipping only; elsewhere the proof has inserted the largest lam that it admits. The last formula of
    the proof prints T^(1/2) in `smoothing_noise`; the one before it has T^(3/2), which is right. A negative term is
    dropped.
    """
    for name, value in {"eta": eta, "lam": lam, "C": C}.items():
        positive(name, value)
    k, d_m, B = constants, constants.d_m, constants.B
    L, gamma = k.L, gamma_1(k, eta)
    P = clip_probability(k, lam, C) if math.isfinite(C) else 0.0
    clipped = P * C**2 if P else 0.0
    both = (4 - B) * L + (B + 2) * gamma

    def term(value: float) -> float:
        return value / (k.q_m * (1 - P)) if P < 1 else math.inf

    slack = 1 + 1e-12
    return Bound(
        start=term(8 * k.F / (eta * T)),
        zo=term(2 * d_m / T),
        smoothing=term(8 / (L * k.d * eta * T)),
        sampling=term(16 * eta * (4 * L + 2 * gamma) * d_m * k.sigma_s**2 / B),
        smoothing_noise=term(max(0.0, 4 * eta * both * d_m / (B * T))),
        clipping=term(16 * eta * (2 * L + gamma) * clipped * d_m / B),
        noise=term(16 * eta * (2 * L + gamma) * sigma_dp**2 * d_m),
        clip_probability=P,
        admissible=eta <= admissible_eta(k, T) * slack and lam <= admissible_lam(k, T) * slack and P < 1,
    )


def corollary_rounds(constants: Constants, *, C: float, D: int, mu: float) -> tuple[float, float]:
    """The corollary's T with all constants 1: as printed, and as its own bound asks for.

    With sigma_dp = 2 C sqrt(T) / (D mu) the noise term grows like sqrt(d T) C^2 / (D mu)^2 while the others fall like
    sqrt(d / T); they meet at T = X (D mu / C)^2, X = F + sigma_s^2 / B + C^2 / (e^(C^2) - 1), where the bound is of the
    order sqrt(d) / (D mu) as claimed. The printed T has another factor sqrt(d), with which the bound would be larger.
    """
    share = C**2 / math.expm1(C**2) if positive("C", C) ** 2 < 700 else 0.0
    X = constants.F + constants.sigma_s**2 / constants.B + share
    balanced = X * (whole("D", D, 1) * positive("mu", mu) / C) ** 2
    return balanced * math.sqrt(constants.d), balanced


def _eta_limit(constants: Constants, eta: float) -> float:
    """B / (4 L (B + 8 d_0) + 8 gamma_1 (2 d_m + B)), with the larger of d_0 and d_m in place of d_0.

    The proof needs B + 8 d_m for a device and B + 8 d_0 for the server; the paper prints d_0 in both.
    """
    k, gamma = constants, gamma_1(constants, eta)
    return k.B / (4 * k.L * (k.B + 8 * max(k.d_0, k.d_m)) + 8 * gamma * (2 * k.d_m + k.B)) if gamma < math.inf else 0.0
