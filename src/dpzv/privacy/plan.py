"""The privacy plan: what was asked for, and the noise and the caps that make it true (`planning.py` makes one).

A plan fixes, before the first release, a list of events: a cap on every record's sum of squared costs, the private
starts, a number of head steps. The epsilon of that list is the claim, and the ledger keeps below it.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from dpzv.declarations import head_rule_facts, method_facts, refuse_directions, start_facts
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.accountant import Composition, compose, epsilon_of_parts, fold
from dpzv.privacy.events import LATTICE_DISTANCE, Event, PlannedRelease, Releases, Start, grid_scale
from dpzv.privacy.gdp import epsilon_of
from dpzv.privacy.label_counts import LabelCounts
from dpzv.sensitivity import clip_factor, euclidean_clip, histogram_factor, outer_product_factor
from dpzv.terms import Accounting, HeadRuleName, MethodName, Neighbours, NoiseSourceName, Protects, StartName, Where
from dpzv.validate import whole

__all__ = [
    "MOST_NUMBERS",
    "SUM_SLACK",
    "ParentRun",
    "PlanRequest",
    "PrivacyPlan",
    "capped_releases",
    "count_events",
    "epsilon_spent",
    "participation_cap",
    "private_starts",
    "refuse_spent",
    "request_of",
    "start_event",
]

SUM_SLACK = 1e-6
"""The noise of heads and starts is larger by this share. Their sums are rounded, so one record can move a sum by more
than its clip, at worst by a share of 4e-7 whatever the size of the sum (docs/privacy.md, Proof 10)."""

COUNT_SLACK = 1e-12
"""The noise of counted labels is larger by this share, which is more than the rounding of a division and a root."""

LEAST_LEFT = 0.01
"""The least share of the squared mu that earlier runs must leave: with it, noise is ten times that of a run alone.

A search for a head's noise leaves some 1e-4 unused, which must not pass for a budget."""

MOST_NUMBERS = 1 << 16
"""The widest embedding and the most directions (`train.q`, `train.directions`) of a batch that a plan allows for.

They enter only through the lattice distances, each of order 1e-20."""


class ParentRun(Struct, frozen=True, kw_only=True):
    """An earlier run that counts as spent for the records of a new one.

    `events` are its claim, at their caps. `used` is what happened of them, known once the run is ended for good.
    `shared` is how many records of the new run it trained on: `None` if that cannot be told, and only a run that is
    known to share none costs nothing. A run that is not `accounted` (the published rule, or no privacy at all) has no
    cost that could be counted. Neither beside it nor beside simulated noise (`noise_source` seeded) is there a
    guarantee.

    The caps of a run that was given what ended parents had left depend on how far these came. Only together with what
    its plan charged for its own parents (`inherited`, of the runs that it `covers`) are they fixed beforehand.
    """

    run_id: str
    noise_source: NoiseSourceName
    events: tuple[Event, ...]
    used: tuple[Event, ...] | None = None
    shared: int | None = None
    accounted: bool = True
    protects: Protects = "records"
    inherited: tuple[Event, ...] = ()
    covers: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it may have trained on a record of the new run."""
        return self.shared != 0

    def charged(self, *, in_full: bool) -> tuple[Event, ...]:
        """What the run costs the worst record of the new one: its caps, or (unless `in_full`) what it used of them.

        With `in_full` it costs the same however far any run came.
        """
        if not (self.counts and self.accounted):
            return ()
        if in_full:
            return (*self.events, *self.inherited)
        return self.events if self.used is None else self.used


class PlanRequest(Struct, frozen=True, kw_only=True):
    """A budget and the training it is for.

    `epsilon` may be infinite (no privacy: no noise, nothing refused for coverage), and only then may `C` be infinite.
    `T` counts the rounds of all `M` devices together. `participations` is how often a record may be in a
    batch at full cost, summed over devices; a record drawn more often is past its cap and contributes 0, so
    the claim does not depend on this number being a bound.

    `parents` are earlier runs, which may have trained on the same records. The budget they leave is a squared mu, split
    by shares: `start_share` for all private starts together, `base_share` for counting labels (0: they are not
    counted), `head_share` for a private head, the rest for the releases; a share that nothing uses is ignored. A
    private head makes `head_steps` steps over an expected `head_batch` of the `D` records; without rounds (``T = 0``)
    it gets all that the others leave, and with ``head_steps = 0`` as well nothing is spent.

    `method` says what a release is: K numbers over a batch (`directions` is K, and `C` is the clip of each of them), or
    what a rival returns. With `where` = uplink a rival's embeddings, clipped to norm `C_h`, get the noise instead, as
    published; that protects nothing against devices.
    """

    epsilon: float
    delta_dp: float
    accounting: Accounting
    neighbours: Neighbours
    protects: Protects
    C: float
    B: int
    D: int
    M: int
    T: int
    participations: int
    min_batch: int
    head_rule: HeadRuleName
    starts: tuple[StartName, ...]
    start_share: float
    method: MethodName
    head_batch: int = 0
    head_steps: int = 0
    head_share: float = 0.5
    base_share: float = 0.0
    parents: tuple[ParentRun, ...] = ()
    where: Where = "downlink"
    C_h: float = math.inf
    directions: int = 1

    @property
    def clip(self) -> float:
        """The Euclidean norm to which the K numbers of one record are clipped together."""
        return euclidean_clip(self.C, self.directions)

    @property
    def q(self) -> float:
        """The probability that a record is in the batch of a head step; 0 without a private head."""
        return self.head_batch / self.D

    @property
    def spends(self) -> bool:
        """Whether anything that depends on records is released, or counts as released."""
        return self.T > 0 or self.head_steps > 0

    @property
    def charges_in_full(self) -> bool:
        """Whether earlier runs cost their caps, even those that are ended for good and used less.

        With secretly sampled head steps they do: the noise of these steps follows from what is left of the budget, and
        it must not depend on how far an earlier run came (docs/privacy.md, Proof 3).
        """
        return bool(head_rule_facts(self.head_rule).mechanism) and self.head_steps > 0 and self.q < 1

    @property
    def charges(self) -> dict[str, tuple[Event, ...]]:
        """What is charged for each earlier run, by its name; one whose cost is in that of a later one is left out."""
        in_full = self.charges_in_full
        charged = {parent.run_id: parent.charged(in_full=in_full) for parent in self.parents}
        covered = {name for parent in self.parents if in_full and charged[parent.run_id] for name in parent.covers}
        return {name: events for name, events in charged.items() if events and name not in covered}

    @property
    def before(self) -> Composition:
        """What the parents cost. The published rule knows no earlier runs, and a run without releases adds nothing."""
        if self.accounting == "paper" or not self.spends:
            return Composition()
        return compose(*map(fold, self.charges.values()))


def request_of(asked: PlanRequest) -> PlanRequest:
    """What was asked for, without what a plan computed from it, and with 0 for what starts and head rule do not use.

    Directions that the method does not have are refused.
    """
    refuse_directions(asked.method, asked.directions)
    asked = PlanRequest(**{name: getattr(asked, name) for name in PlanRequest.__struct_fields__})
    if not private_starts(asked):
        asked = replace(asked, start_share=0.0)
    if not head_rule_facts(asked.head_rule).mechanism:
        asked = replace(asked, head_batch=0, head_steps=0, head_share=0.0)
    return asked if asked.where == "uplink" else replace(asked, C_h=math.inf)


def refuse_spent(asked: PlanRequest, left: float, whole: float) -> None:
    """Refuse a run to which its parents leave (almost) nothing: a joint mu of `left` out of `whole`."""
    share = (left / whole) ** 2
    if share >= LEAST_LEFT:
        return
    costs = [
        (name, epsilon_of_parts(fold(charged), asked.delta_dp, asked.neighbours))
        for name, charged in asked.charges.items()
    ]
    named = ", ".join(f"{name[:8]} (epsilon {epsilon:.3g})" for name, epsilon in costs)
    together = epsilon_of_parts(asked.before, asked.delta_dp, asked.neighbours)
    raise PrivacyRefused(
        f"the earlier runs on these records, {named}, cost epsilon {together:.3g} together and leave nothing of "
        f"epsilon={asked.epsilon:g}, or too little: {share:.2g} of its squared mu, and {LEAST_LEFT:g} is the least "
        "that a run is planned with; raise epsilon well above their cost, or use records that they did not train on."
    )


def participation_cap(*, T: int, B: int, D: int, M: int) -> int:
    """How often one record can be in a batch, over all devices, in `T` rounds of `B` of `D` records.

    Device m walks one permutation cyclically, so n_m of its rounds hold a record at most ceil(n_m B/D) times. In a
    whole run the n_m differ by at most one, however fast each device is (`ServerRun.has_round`).
    """
    for name, value, least in (("T", T, 0), ("B", B, 1), ("D", D, B), ("M", M, 1)):
        whole(name, value, least)
    each, more = divmod(T, M)
    return more * -(-(each + 1) * B // D) + (M - more) * -(-each * B // D)


def private_starts(asked: PlanRequest) -> tuple[int, ...]:
    """The indices of the devices whose start is private, so that it is charged."""
    return tuple(m for m, name in enumerate(asked.starts) if start_facts(name).private)


class PrivacyPlan(PlanRequest, frozen=True, kw_only=True):
    """The request and what follows from it. Made by `make_plan` only.

    `mu` is the Gaussian-DP parameter of all releases together, `mu_start` that of each device's start (0 unless it is
    private) and `mu_base` that of the counts of labels (0: none), all for `neighbours`. `mu_head` and `mu_parents` are
    the shares of the head and of earlier runs as a mu: exact where they are Gaussian, else what they leave to the
    others. `z` is the noise multiplier of a head's private steps (0: it makes none). `cap` bounds every record's sum of
    (clip / (B sigma_dp))^2; it is infinite where there is nothing to enforce. `events` are all that the ledger admits,
    at their caps. `epsilon_zero_out` and `epsilon_replace_one` are what the same noise gives under either kind of
    neighbours. `sigma_h` is the noise on a rival's embeddings where the noise is on the uplink; the releases then have
    none.
    """

    sigma_dp: float
    z: float
    mu: float
    mu_start: tuple[float, ...]
    mu_base: float
    mu_head: float
    mu_parents: float
    cap: float
    events: tuple[Event, ...]
    epsilon_zero_out: float
    epsilon_replace_one: float
    warnings: tuple[str, ...]
    sigma_h: float

    @property
    def per_record(self) -> bool:
        """Whether a release has numbers for each record by itself, not means over the batch."""
        return method_facts(self.method).per_record

    @property
    def claimed_epsilon(self) -> float:
        """Epsilon for the plan's own neighbours: the one asked for, or 0 when nothing is released.

        Noise on the uplink keeps no epsilon against devices, whatever was asked for; `paper` repeats what was printed.
        """
        if not self.spends:
            return 0.0
        return math.inf if self.where == "uplink" and self.accounting == "exact" else self.epsilon

    def release(self, *, t: int, m: int, position: int, B: int, sigma_dp: float | None = None) -> PlannedRelease:
        """A release under this plan, over a batch of `B` records, with the plan's noise unless told otherwise."""
        noise = self.sigma_dp if sigma_dp is None else sigma_dp
        return PlannedRelease(t=t, m=m, position=position, B=B, C=self.clip, sigma_dp=noise, per_record=self.per_record)

    @property
    def claim(self) -> tuple[Event, ...]:
        """What the claim is about, without the parents: this run at its caps, or nothing when it spends nothing.

        Under `paper` this is the published figure, whose factor is that of a replaced record. Without a budget it is
        infinite.
        """
        if not self.spends:
            return ()
        if math.isinf(self.claimed_epsilon):
            return (Releases(cap=math.inf, distance=0.0),)
        if self.accounting == "paper":
            return (Releases(cap=(self.mu / clip_factor("replace-one")) ** 2, distance=0.0),)
        return self.events

    @property
    def cost(self) -> Composition:
        """What the claim costs: this run at its caps, and its parents."""
        return compose(fold(self.claim), self.before)


def start_event(plan: PrivacyPlan, m: int) -> Start:
    """The private start of the device with index `m` in `plan.starts`, with the noise that its `mu_start` needs."""
    if m not in private_starts(plan):
        raise ConfigError(f"only a private start has noise, got '{plan.starts[m]}' for device {m}; ask for no other.")
    factor = outer_product_factor(plan.neighbours)
    return Start(m=m, mu=plan.mu_start[m] / factor, noise_multiplier=factor / plan.mu_start[m] * (1 + SUM_SLACK))


def count_events(plan: PrivacyPlan) -> tuple[LabelCounts, ...]:
    """The counting of labels with the noise that `mu_base` needs, if the plan has it."""
    if not plan.mu_base:
        return ()
    return (LabelCounts(sigma=histogram_factor(plan.neighbours) / plan.mu_base * (1 + COUNT_SLACK)),)


def capped_releases(plan: PrivacyPlan) -> Releases:
    """All releases of the plan at their cap."""
    # the ledger admits no batch below min_batch, so no release has coarser noise than this
    least = plan.release(t=0, m=0, position=0, B=min(plan.B, plan.min_batch))
    scale = grid_scale(least) if math.isfinite(plan.cap) else math.inf
    numbers = method_facts(plan.method).numbers(plan.B, MOST_NUMBERS, MOST_NUMBERS, plan.directions, True)
    return Releases(cap=plan.cap, distance=plan.T * numbers * LATTICE_DISTANCE / scale**2)


def epsilon_spent(plan: PrivacyPlan, releases: int, unit_mu_squared: float, head_steps: int = 0) -> float:
    """Epsilon of what has happened so far: an estimate to show beside the claim, never above it.

    `unit_mu_squared` is the largest sum of (C / (B sigma_dp))^2 of any record. Under `paper` only the number of
    `releases` counts. Steps of a sampled head are taken to share its `mu_head` evenly, which is right at both ends.
    """
    if math.isinf(plan.claimed_epsilon):
        return math.inf if releases or head_steps else 0.0
    if plan.accounting == "paper":
        mu = plan.mu * math.sqrt(min(1.0, releases / plan.T)) if releases else 0.0
    else:
        square = plan.mu_parents**2
        if releases or head_steps:
            square += clip_factor(plan.neighbours) ** 2 * unit_mu_squared
            square += math.fsum(mu**2 for mu in (*plan.mu_start, plan.mu_base))
        if head_steps:
            square += plan.mu_head**2 * head_steps / plan.head_steps
        mu = math.sqrt(square)
    return min(plan.claimed_epsilon, epsilon_of(mu, plan.delta_dp))
