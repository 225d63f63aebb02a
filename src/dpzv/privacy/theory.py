"""The paper's convergence theorem in numbers: its lemmas, its bound term by term, what it admits, its corollary.

The paper's proof does not hold as printed: all records of a batch share one direction, clipping shortens every record
by a share of its own, and a few constants are lost on the way (docs/fidelity.md lists them). The bound here has the
paper's rate and a proof without these gaps. Devices may differ in their numbers of weights and in participation.

The proof, for one round. Block m is device m, or the server for m = 0. With s, c, M2 of `smoothing_bias`, `clip_bias`
and `second_moment`, the mean of block m's step is the gradient plus an error of squared norm at most
3 (L^2 Delta + s^2 + c^2), where Delta is the squared distance of the delayed weights. So smoothness gives
E F(next) <= F - sum q_m (eta/2) |grad_m|^2 + sum q_m (3 eta/2) (L^2 Delta + s^2 + c^2) + sum q_m (L eta^2/2) M2. A
weighted sum of the last tau moves is added to F, with weights that fall from `gamma_1` to 0 such that the terms in
Delta cancel. For an admissible eta at least (eta/4) q_m |grad_m|^2 is left of the first sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpzv.errors import ConfigError
from dpzv.validate import positive, whole

__all__ = [
    "Bound",
    "Constants",
    "admissible_eta",
    "admissible_lam",
    "bound",
    "clip_bias",
    "clip_probability",
    "corollary",
    "least_clip",
    "loss_bias",
    "second_moment",
    "smoothing_bias",
]

# A record's difference is clipped with probability at most this times exp(-C_0^2 / (8 l^2)).
_CLIP_FACTOR = 2 * math.sqrt(2 * math.pi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the theorem assumes of a problem and of the run.

    F: loss at the start minus its infimum. L, l: smoothness and Lipschitz constant of every record's loss. sigma_s:
    standard deviation of a record's gradient. d_0: number of the weights w_0 that the server trains, 0 if it trains
    none. d_m, q_m: number of weights and participation probability of every device; empty q_m stands for equal ones.
    tau: largest delay in rounds. B: batch.
    """

    F: float
    L: float
    l: float  # noqa: E741 (the paper's letter)
    sigma_s: float
    d_0: int
    d_m: tuple[int, ...]
    tau: int
    B: int
    q_m: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("F", "L", "l"):
            positive(name, getattr(self, name))
        for name, least in (("d_0", 0), ("tau", 0), ("B", 1)):
            whole(name, getattr(self, name), least)
        for d_m in self.d_m:
            whole("d_m", d_m, 1)
        if not self.d_m or self.sigma_s < 0:
            raise ConfigError(
                f"expected d_m of at least one device and sigma_s >= 0, got {len(self.d_m)} devices and "
                f"sigma_s={self.sigma_s:g}; check the constants."
            )
        q = self.participation
        if len(q) != len(self.d_m) or min(q) <= 0 or abs(math.fsum(q) - 1) > 1e-6:
            raise ConfigError(
                f"expected one q_m > 0 for each of the {len(self.d_m)} devices with a sum of 1, got {len(q)} with the "
                f"sum {math.fsum(q):g} and the least {min(q):g}; correct them, or leave them out for equal ones."
            )

    @property
    def participation(self) -> tuple[float, ...]:
        """The participation probability of every device."""
        return self.q_m or (1 / len(self.d_m),) * len(self.d_m)

    @property
    def d(self) -> int:
        """The number of all trained weights."""
        return self.d_0 + sum(self.d_m)

    @property
    def largest(self) -> int:
        """The number of weights of the largest block, d_* in the paper."""
        return max(self.d_0, *self.d_m)

    def blocks(self) -> Iterator[tuple[int, float, bool]]:
        """Number of weights, participation and whether it is a device, of the server (if it trains) and the devices."""
        if self.d_0:
            yield self.d_0, 1.0, False
        for d_m, q_m in zip(self.d_m, self.participation, strict=True):
            yield d_m, q_m, True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A bound on the mean over rounds of the squared gradient norm: the sum of its terms.

    Each term has one cause. start: the distance of the start. smoothing: finite differences in place of slopes.
    sampling: the batches. clipping: what is clipped away. noise: the privacy noise. `admissible` is whether eta, lam
    and C are as the theorem asks; the bound holds wherever it is finite.
    """

    start: float
    smoothing: float
    sampling: float
    clipping: float
    noise: float
    clip_probability: float
    admissible: bool

    @property
    def total(self) -> float:
        """The bound: the sum of its terms."""
        return math.fsum((self.start, self.smoothing, self.sampling, self.clipping, self.noise))


@dataclass(frozen=True, slots=True, kw_only=True)
class Corollary:
    """printed_rounds: the corollary's T with all constants 1. rounds: the T at which its bound is least. rate: the
    order sqrt(d) / (D mu) of the bound there."""

    printed_rounds: float
    rounds: float
    rate: float


def loss_bias(L: float, lam: float, d: int) -> float:
    """How far the smoothed loss is from the loss, at most: L lam^2 d / 2 (the paper's first lemma)."""
    return L * lam**2 * d / 2


def smoothing_bias(L: float, lam: float, d: int) -> float:
    """How far the mean of a two-point estimate is from the gradient, in norm, at most: L lam d^(3/2) / 2.

    The mean is the gradient of the smoothed loss (the paper's first lemma).
    """
    return L * lam * d * math.sqrt(d) / 2


def clip_probability(constants: Constants, lam: float, C: float) -> float:
    """Bound on the probability that a record's difference is clipped; 1 where the lemma says nothing.

    A direction of norm sqrt(d) leaves L lam d / 2 beside the slope, where d is that of the largest block.
    """
    room = C - constants.L * lam * constants.largest / 2
    if room <= 0:
        return 1.0
    return min(1.0, _tail(constants, room))


def clip_bias(constants: Constants, lam: float, C: float, d: int) -> float:
    """How far clipping moves the mean of an estimate in block of `d` weights, in norm, at most; infinite if unknown.

    What is cut off a difference, e = (|delta| - C)_+, has E e^2 <= 8 l^2 X, where X exp(-s^2 / (8 l^2)) bounds the
    probability of |delta| >= C + s. The mean moves by E[e u], and |E[e u]| <= sqrt(E e^2), since E[u u^T] is the
    identity. The paper has the mean (1 - P) grad F instead. But every record is shortened by a share of its own, so the
    mean can even point against grad F.
    """
    return constants.l * math.sqrt(8 * _excess(constants, lam, C, d))


def second_moment(
    constants: Constants, squared_gradient: float, *, d: int, lam: float, C: float, sigma_dp: float
) -> float:
    """E |G|^2, at most, of a clipped and noisy estimate of a batch in a block of `d` weights, without delay.

    The differences of a batch have one direction in common, so their mean is the difference of the batch's mean loss:
    only `sigma_s`^2 is divided by B. (The paper divides the squared gradient by B, too.) Its variance is at most this.
    """
    k = 1 + math.sqrt(_excess(constants, lam, C, d))
    differences = 2 * squared_gradient + _spread(constants, lam, C, d)
    return k * d * differences + sigma_dp**2 * d


def admissible_eta(constants: Constants, T: int, *, lam: float, C: float) -> float:
    """The largest step size the theorem admits for `T` rounds.

    The condition bounds eta by a falling function of eta itself, through `gamma_1`, so the largest is found by
    bisection and rounded down.
    """
    low, high = 0.0, 1 / math.sqrt(whole("T", T, 1) * constants.largest)
    if high <= _eta_limit(constants, high, lam, C):
        return high
    for _ in range(200):
        middle = (low + high) / 2
        if middle <= _eta_limit(constants, middle, lam, C):
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
    return constants.L * lam * constants.largest / 2 + constants.l * math.sqrt(8 * math.log(_CLIP_FACTOR))


def gamma_1(constants: Constants, eta: float, lam: float, C: float) -> float:
    """The weight of the newest move in the proof's sum of loss and moves; infinite if eta is too large."""
    L, tau = constants.L, constants.tau
    if not tau:
        return 0.0
    moves = [(q * _delayed(constants, lam, C, d), q, device) for d, q, device in constants.blocks()]
    above = math.fsum(1.5 * eta * L**2 * q + L * eta**2 / 2 * part for part, q, _ in moves)
    left = 1 - (tau * eta) ** 2 * math.fsum(part for part, _, device in moves if device)
    return tau**2 * above / left if left > 0 and math.isfinite(above) else math.inf


def bound(constants: Constants, *, T: int, eta: float, lam: float, C: float, sigma_dp: float) -> Bound:
    """The theorem for these choices; infinite where a step is too large or nearly everything is clipped.

    With eta = 1 / sqrt(T d_*) and lam = 1 / (L d sqrt(T)) the start, the sampling and the noise fall as sqrt(d_* / T),
    as in the paper.
    """
    for name, value in {"eta": eta, "lam": lam, "C": C}.items():
        positive(name, value)
    k, slack = constants, 1 + 1e-12
    limit = _eta_limit(k, eta, lam, C)
    smoothing = sampling = clipping = noise = 0.0
    for d, q, device in k.blocks():
        excess = _excess(k, lam, C, d)
        kept = 1 + math.sqrt(excess)
        weight = 4 * eta * q * d * (k.L / 2 + (gamma_1(k, eta, lam, C) if device else 0.0))
        smoothing += 6 * q * smoothing_bias(k.L, lam, d) ** 2 + weight * kept * (k.L * lam * d) ** 2 / 2
        sampling += weight * kept * 2 * k.sigma_s**2 / k.B
        clipping += 6 * q * clip_bias(k, lam, C, d) ** 2 + weight * kept * 8 * k.l**2 * math.sqrt(excess)
        noise += weight * sigma_dp**2
    least = min(q for _, q, _ in k.blocks())

    def term(value: float) -> float:
        return value / least if eta <= limit * slack else math.inf

    P = clip_probability(k, lam, C)
    fits = eta <= min(limit, 1 / math.sqrt(T * k.largest)) * slack and lam <= admissible_lam(k, T) * slack and P < 1
    return Bound(
        start=term(4 * k.F / (eta * T)),
        smoothing=term(smoothing),
        sampling=term(sampling),
        clipping=term(clipping),
        noise=term(noise),
        clip_probability=P,
        admissible=fits,
    )


def corollary(constants: Constants, *, C: float, D: int, mu: float) -> Corollary:
    """The corollary's rounds with all constants 1, as printed and as its own bound asks for, and its rate.

    With sigma_dp = 2 C sqrt(T) / (D mu) the noise term grows like sqrt(d T) C^2 / (D mu)^2 while the others fall like
    sqrt(d / T); they meet at T = X (D mu / C)^2, X = F + sigma_s^2 / B + C^2 / (e^(C^2) - 1), where the bound is of the
    order sqrt(d) / (D mu) as claimed. The printed T has another factor sqrt(d), with which the bound would be larger.
    """
    share = C**2 / math.expm1(C**2) if positive("C", C) ** 2 < 700 else 0.0
    X = constants.F + constants.sigma_s**2 / constants.B + share
    strength = whole("D", D, 1) * positive("mu", mu)
    balanced, root = X * (strength / C) ** 2, math.sqrt(constants.d)
    return Corollary(printed_rounds=balanced * root, rounds=balanced, rate=root / strength)


def _tail(constants: Constants, room: float) -> float:
    return _CLIP_FACTOR * math.exp(-((room / constants.l) ** 2) / 8)


def _excess(constants: Constants, lam: float, C: float, d: int) -> float:
    """X of `clip_bias`: 0 without a clip, infinite where the clip is below the error of a finite difference."""
    room = C - constants.L * lam * d / 2
    if math.isinf(C):
        return 0.0
    return _tail(constants, room) if room >= 0 else math.inf


def _spread(constants: Constants, lam: float, C: float, d: int) -> float:
    """What E (difference)^2 has beside the gradient: sampling, smoothing and clipping."""
    k = constants
    clipped = 8 * k.l**2 * math.sqrt(_excess(k, lam, C, d))
    return 2 * k.sigma_s**2 / k.B + (k.L * lam * d) ** 2 / 2 + clipped


def _steepness(constants: Constants, lam: float, C: float, d: int) -> float:
    """The factor of |grad_m|^2 in a block's second moment; with delays the gradient is that of older weights."""
    return 2 * (1 + math.sqrt(_excess(constants, lam, C, d))) * d * (2 if constants.tau else 1)


def _delayed(constants: Constants, lam: float, C: float, d: int) -> float:
    """The factor of the squared distance of the delayed weights in a block's second moment."""
    return _steepness(constants, lam, C, d) * constants.L**2


def _eta_limit(constants: Constants, eta: float, lam: float, C: float) -> float:
    """1 / (2 a (L + 2 gamma_1)) for the block where it is least, a = `_steepness`; no gamma_1 for the server.

    The paper prints B / (4 L (B + 8 d_0) + 8 gamma_1 (2 d_m + B)), which is up to B/8 times larger.
    """
    gamma = gamma_1(constants, eta, lam, C)
    worst = max(
        _steepness(constants, lam, C, d) * (constants.L + (2 * gamma if device else 0.0))
        for d, _, device in constants.blocks()
    )
    return 1 / (2 * worst)
