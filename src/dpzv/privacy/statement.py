"""The privacy statement: what a run claims, against whom, and what it does not cover, in words."""

from __future__ import annotations

import math

from msgspec import Struct

from dpzv.privacy.gdp import advantage, epsilon_of, tpr_at_fpr, true_mu_of_paper
from dpzv.privacy.plan import PrivacyPlan, claimed_mu, verdict
from dpzv.terms import Accounting, HeadRuleName, Neighbours, NoiseSourceName, Protects

__all__ = ["Statement", "statement"]

_ADVERSARY = (
    "any coalition of devices, all of them included; they know their own features, weights and directions, "
    "the records of every batch and every Delta; the server is trusted"
)
_PROTECTED: dict[Protects, str] = {
    "records": "one record at a time: its label, and its features held by devices outside the coalition",
    "labels": "one record's label at a time; its features are not protected",
}
_NEIGHBOURS: dict[Neighbours, str] = {
    "replace-one": "replace-one: what is protected of one record becomes anything else",
    "zero-out": "zero-out: one record's contribution becomes nothing",
}
_ACCOUNTANT: dict[Accounting, str] = {
    "exact": "exact: public batches, Gaussian releases and starts added up in closed form, capped per record",
    "paper": "paper: sigma_dp = 2 C sqrt(T) / (D mu), the published rule",
}
_NOISE: dict[NoiseSourceName, str] = {
    "exact": "exact: secret, drawn from the operating system's entropy",
    "seeded": "seeded: reproducible, so whoever knows the seed can remove it; for simulation only",
}
_NOT_COVERED = (
    "the uplink to the server",
    "predictions and whatever else leaves after training",
    "timing and order of messages",
    "validation records",
    "other runs on the same records (they add up)",
    "a ledger restored from a backup",
)
_RATES = (0.01, 0.001)


class Statement(Struct, frozen=True, kw_only=True):
    """A run's claim. `epsilon` is the one for `neighbours`; `epsilon_spent` is an estimate of what was used.

    `tpr_at_fpr` (the best true-positive rate by false-positive rate) and `advantage` describe the risk of the
    claim under replace-one; they are None where nothing is released or there is no claim. `epsilon_counted`
    is for `paper` only: the least epsilon (replace-one) of its noise for devices, which know the batches.
    """

    epsilon: float
    epsilon_zero_out: float
    epsilon_replace_one: float
    epsilon_spent: float
    epsilon_counted: float | None
    delta_dp: float
    accounting: Accounting
    neighbours: Neighbours
    protects: Protects
    adversary: str
    accountant: str
    noise_source: NoiseSourceName
    sigma_dp: float
    C: float
    B: int
    head_rule: HeadRuleName
    releases: int
    planned_releases: int
    tpr_at_fpr: dict[str, float] | None
    advantage: float | None
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    guarantee: bool
    guarantee_why: str
    warnings: tuple[str, ...]

    def text(self) -> str:
        """The statement as short labelled lines, without colour or wrapping."""
        asked = math.isfinite(self.epsilon)
        claim = [
            ("Neighbours", _NEIGHBOURS[self.neighbours]),
            ("Accountant", self.accountant),
            ("Noise", _NOISE[self.noise_source]),
        ]
        lines = [
            ("Guarantee", f"{'yes' if self.guarantee else 'no'}: {self.guarantee_why}"),
            ("Epsilon", _epsilon_line(self)),
            *_counted_lines(self),
            ("Adversary", self.adversary),
            ("Protected", _protected_line(self)),
            *(claim if asked else []),
            ("Released", _released_line(self)),
            *_risk_lines(self),
            *([("Covered", "; ".join(self.covered))] if self.covered else []),
            ("Not covered", "; ".join(self.not_covered)),
            *(("Warning", warning) for warning in self.warnings),
        ]
        return "\n".join(["Privacy statement", *(f"  {label + ':':<13}{text}" for label, text in lines)])


def statement(
    plan: PrivacyPlan, *, noise_source: NoiseSourceName, releases: int, epsilon_spent: float
) -> Statement:
    """The statement of a run under `plan` that has made `releases` releases."""
    guarantee, why = verdict(plan, noise_source)
    budget = math.isfinite(plan.epsilon) and plan.T > 0
    claims = budget and plan.accounting == "exact"
    mu = claimed_mu(plan, "replace-one")
    counted = None
    if budget and plan.accounting == "paper":
        counted = epsilon_of(true_mu_of_paper(plan.mu, plan.B, plan.D), plan.delta_dp)
    return Statement(
        epsilon=plan.claimed_epsilon,
        epsilon_zero_out=plan.epsilon_zero_out,
        epsilon_replace_one=plan.epsilon_replace_one,
        epsilon_spent=epsilon_spent,
        epsilon_counted=counted,
        delta_dp=plan.delta_dp,
        accounting=plan.accounting,
        neighbours=plan.neighbours,
        protects=plan.protects,
        adversary=_ADVERSARY,
        accountant=_ACCOUNTANT[plan.accounting],
        noise_source=noise_source,
        sigma_dp=plan.sigma_dp,
        C=plan.C,
        B=plan.B,
        head_rule=plan.head_rule,
        releases=releases,
        planned_releases=plan.T,
        tpr_at_fpr={f"{rate:g}": tpr_at_fpr(mu, rate) for rate in _RATES} if claims else None,
        advantage=advantage(mu) if claims else None,
        covered=_covered(plan) if claims else (),
        not_covered=_not_covered(plan),
        guarantee=guarantee,
        guarantee_why=why,
        warnings=plan.warnings,
    )


def _covered(plan: PrivacyPlan) -> tuple[str, ...]:
    if plan.T == 0:
        return ("nothing is released",)
    return (
        "every Delta",
        f"head rule {plan.head_rule}",
        *(f"start {name}" for name in sorted(set(plan.starts))),
    )


def _not_covered(plan: PrivacyPlan) -> tuple[str, ...]:
    weights = (
        ("given start weights, if they were made from these records",) if "weights" in plan.starts else ()
    )
    return _NOT_COVERED + weights


def _protected_line(told: Statement) -> str:
    if math.isinf(told.epsilon):
        return "nothing"
    aim = "not guaranteed; aimed at is " if told.accounting == "paper" else ""
    return aim + _PROTECTED[told.protects]


def _epsilon_line(told: Statement) -> str:
    if told.planned_releases == 0:
        return "0: nothing is released, so devices learn nothing from the server"
    if math.isinf(told.epsilon):
        return "none: no privacy was asked for, so no noise was added"
    published = " as published" if told.accounting == "paper" else ""
    return (
        f"{told.epsilon_replace_one:.6g} (replace-one) and {told.epsilon_zero_out:.6g} (zero-out)"
        f"{published}, delta_dp {told.delta_dp:g}"
    )


def _counted_lines(told: Statement) -> list[tuple[str, str]]:
    if told.epsilon_counted is None:
        return []
    text = (
        f"for devices, which know the batches, this noise gives epsilon {told.epsilon_counted:.6g} "
        "(replace-one) at the least"
    )
    if told.head_rule in ("sgd", "zo"):
        text += f"; head rule {told.head_rule} moves w_0 by un-noised labels, so no useful bound holds at all"
    return [("In truth", text)]


def _released_line(told: Statement) -> str:
    if told.planned_releases == 0:
        return "nothing"
    text = (
        f"{told.releases:,} of at most {told.planned_releases:,} scalars Delta over B={told.B} records each"
    )
    if math.isinf(told.epsilon):
        return text
    return (
        f"{text}, clip C={told.C:g}, noise sigma_dp={told.sigma_dp:.6g}; "
        f"epsilon spent so far about {told.epsilon_spent:.4g}"
    )


def _risk_lines(told: Statement) -> list[tuple[str, str]]:
    if told.tpr_at_fpr is None or told.advantage is None:
        return []
    rates = ", ".join(
        f"{100 * tpr:.3g} % true at {100 * float(fpr):g} % false positives"
        for fpr, tpr in told.tpr_at_fpr.items()
    )
    return [("Risk", f"best attack on one record: {rates}; advantage {told.advantage:.3g}")]
