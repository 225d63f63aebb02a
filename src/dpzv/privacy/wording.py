"""The privacy statement in words: what is claimed, against whom, what is not covered, and what may leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dpzv.declarations import head_rule_facts, method_facts, start_facts
from dpzv.privacy.plan import ParentRun, PrivacyPlan
from dpzv.terms import Accounting, HeadRuleName, MethodName, Neighbours, NoiseSourceName, Protects

__all__ = ["Artefact", "RunLine", "Statement", "artefacts_of", "earlier_run", "released", "verdict"]

ADVERSARY = (
    "any coalition of devices, all of them included; they know their own features, weights and directions, "
    "the records of every batch and every Delta; the server is trusted"
)
ACCOUNTANT: dict[Accounting, str] = {
    "exact": "exact: public batches, Gaussian releases and starts added up in closed form, capped per record",
    "paper": "paper: sigma_dp = 2 C sqrt(T) / (D mu), the published rule",
}
UPLINK: dict[Accounting, str] = {
    "exact": "none for devices; on the uplink sigma_h = 2 C_h sqrt(uploads of a record) / mu for its embeddings",
    "paper": "paper: sigma_h = (B/D) 2 C_h sqrt(T) / mu on every embedding, as we read the paper",
}
SAMPLED_HEAD = "; secretly sampled head steps composed with them as privacy loss distributions, rounded up"
NOT_COVERED = (
    "the uplink to the server",
    "predictions and whatever else leaves after training",
    "timing and order of messages",
    "validation records",
    "other runs on any of these records that are not named as earlier runs (they add up)",
    "a ledger restored from a backup",
)
_PROTECTED: dict[Protects, str] = {
    "records": "one record at a time: its label, and its features held by devices outside the coalition",
    "labels": "one record's label at a time; its features are not protected",
}
_NEIGHBOURS: dict[Neighbours, str] = {
    "replace-one": "replace-one: what is protected of one record becomes anything else",
    "zero-out": "zero-out: one record's contribution becomes nothing",
}
_NOISE: dict[NoiseSourceName, str] = {
    "exact": "exact: secret, from the operating system's entropy; releases by the discrete Gaussian on integers, "
    "head steps and starts by a Gaussian rounded to integers",
    "seeded": "seeded: reproducible, so whoever knows the seed can remove it; for simulation only",
}
_SPENT = "epsilon about {:.4g}, an estimate below the claim"


class Artefact(Struct, frozen=True, kw_only=True):
    """One thing a run makes. `may_leave` is whether the claim covers handing it to anybody."""

    name: str
    holder: str
    may_leave: bool
    why: str


class RunLine(Struct, frozen=True, kw_only=True):
    """What one run releases, in figures."""

    run_id: str
    releases: int
    planned_releases: int
    head_steps: int
    planned_head_steps: int
    B: int
    C: float
    clip: float
    directions: int
    sigma_dp: float
    method: MethodName
    sigma_h: float
    head_rule: HeadRuleName
    q: float
    z: float


class Statement(Struct, frozen=True, kw_only=True):
    """A claim. `epsilon` is the one for `neighbours`; `epsilon_spent` is an estimate of what was used.

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
    releases: int
    head_steps: int
    tpr_at_fpr: dict[str, float] | None
    advantage: float | None
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    artefacts: tuple[Artefact, ...]
    runs: tuple[RunLine, ...]
    guarantee: bool
    guarantee_why: str
    warnings: tuple[str, ...]

    def text(self) -> str:
        """The statement as short labelled lines, without colour or wrapping."""
        lines = [f"  {label + ':':<13}{text}" for label, text in _lines(self) if text]
        return "\n".join(["Privacy statement", *lines])

    def table(self) -> str:
        """The artefacts as an aligned table: who holds it, may it leave, why."""
        rows = [("artefact", "holder", "may leave", "why")]
        rows += [(a.name, a.holder, "yes" if a.may_leave else "no", a.why) for a in self.artefacts]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
        )

    def values(self) -> dict[str, Any]:
        """All figures and words, ready for JSON; infinity is the string "inf"."""
        values: dict[str, Any] = _finite(msgspec.to_builtins(self))
        return values


def _finite(value: Any) -> Any:
    """`value` with every infinity in it written "inf", since a JSON number cannot be infinite."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return "inf" if value == math.inf else value


def artefacts_of(plans: Sequence[PrivacyPlan], *, guarantee: bool) -> tuple[Artefact, ...]:
    """The table of artefacts of runs under `plans`; without a guarantee nothing may leave."""
    # without releases a private start is not charged, since it stays at its device
    looked = any(
        start.reads or start.given or (start.private and not plan.spends)
        for plan in plans
        for start in map(start_facts, plan.starts)
    )
    w_m = w_0 = ""  # why the weights may not leave
    if any(method_facts(plan.method).backpropagates and plan.spends for plan in plans):
        w_m = "backpropagation put its raw features into it"
    elif looked:
        w_m = "its start read features without accounted noise, or its weights were supplied by somebody"
    if not all(head_rule_facts(plan.head_rule).covered for plan in plans):
        w_0 = "moves by un-noised labels"
    rows = (
        ("Deltas", "server, devices", True, "released through the ledger; the claim is about them"),
        ("w_m", "device m", not w_m, w_m or "follows from its start and the Deltas, which the claim covers"),
        ("w_0", "server", not w_0, w_0 or "moves by private quantities only; the claim counts them as released"),
        ("final head", "server", False, "fitted to all labels without noise; with head.final = private there is none"),
        ("predictions", "server", False, "what they reveal of records and labels is not covered"),
        ("logs and metrics", "server", False, "computed from labels without noise"),
        ("ledger", "server", False, "holds hashes of the devices' uploads beside the Deltas"),
        ("checkpoint", "server", False, "holds the table of embeddings"),
    )
    nothing = "this run makes no guarantee"
    return tuple(
        Artefact(name=name, holder=holder, may_leave=may and guarantee, why=why if guarantee or not may else nothing)
        for name, holder, may, why in rows
    )


def verdict(plan: PrivacyPlan, noise_source: NoiseSourceName) -> tuple[bool, str]:
    """Whether the plan's epsilon is a guarantee with this noise, and why (or why not), in words."""
    if math.isinf(plan.epsilon):
        return False, "no privacy was asked for (epsilon is infinite)"
    if plan.where == "uplink" and plan.spends:
        return False, (
            "noise on the uplink hides embeddings on their way to the server, which is trusted; what comes back "
            "carries labels without noise, so nothing is protected against curious devices"
        )
    if plan.accounting == "paper":
        return False, (
            "this reproduces the published rule and is not a guarantee against curious devices, which know the batches"
        )
    if noise_source == "seeded":
        nothing = "" if plan.spends else "; nothing is released, so epsilon is 0 with any noise"
        return False, f"simulated noise: what this plan would guarantee with secret noise{nothing}"
    if not plan.spends:
        return True, "nothing is released"
    for parent in plan.parents:
        if parent.counts and not parent.accounted:
            return False, (
                f"the earlier run {parent.run_id[:8]} may have trained on the same records and has no account that "
                "holds against devices, so no figure holds for these records"
            )
        if parent.counts and parent.noise_source == "seeded":
            return False, (
                f"the earlier run {parent.run_id[:8]} may have trained on the same records and had simulated noise, "
                "which whoever knows its seed can remove"
            )
    return True, "exact account, covered head rule and starts, secret noise, ledger before every release"


def released(method: MethodName, B: int, K: int) -> str:
    """What is released, with K directions a message over B records."""
    facts = method_facts(method)
    return (facts.releases if K == 1 else facts.several).format(B=B, K=K)


def earlier_run(plan: PrivacyPlan, parent: ParentRun) -> str:
    """What an earlier run counts for under `plan`, in words."""
    name = f"earlier run {parent.run_id[:8]}"
    if not parent.counts:
        return f"{name} (it shares no record with this one, by their names, and costs it nothing)"
    shared = "" if parent.shared is None else f" ({parent.shared:,} of {plan.D:,} records are shared)"
    if plan.charges_in_full or parent.used is None:
        return f"{name} in full{shared}"
    return f"{name} as far as it came before it was ended for good{shared}"


def _lines(told: Statement) -> list[tuple[str, str]]:
    """The statement as (label, text) lines; an empty text is left out."""
    finite = math.isfinite(told.epsilon)
    protected = ("not guaranteed; aimed at is " if told.accounting == "paper" else "") + _PROTECTED[told.protects]
    return [
        ("Guarantee", f"{'yes' if told.guarantee else 'no'}: {told.guarantee_why}"),
        ("Epsilon", _epsilon_line(told)),
        ("In truth", _counted_line(told)),
        ("Adversary", told.adversary),
        ("Protected", protected if finite and not any(run.sigma_h for run in told.runs) else "nothing"),
        ("Neighbours", _NEIGHBOURS[told.neighbours] if finite else ""),
        ("Accountant", told.accountant if finite else ""),
        ("Noise", _NOISE[told.noise_source] if finite else ""),
        *(("Released", _released_line(told, run)) for run in told.runs),
        ("Spent", _SPENT.format(told.epsilon_spent) if finite and told.epsilon else ""),
        ("Risk", _risk_line(told)),
        ("Covered", "; ".join(told.covered)),
        ("Not covered", "; ".join(told.not_covered)),
        *(("Warning", warning) for warning in told.warnings),
    ]


def _epsilon_line(told: Statement) -> str:
    if not any(run.planned_releases or run.planned_head_steps for run in told.runs):
        return "0: nothing is released, so devices learn nothing from the server"
    if math.isinf(told.epsilon):
        if any(run.sigma_h for run in told.runs):
            return "none against devices: the noise is on the uplink, and labels come back without any"
        return "none: no privacy was asked for, so no noise was added"
    published = " as published" if told.accounting == "paper" else ""
    return (
        f"{told.epsilon_replace_one:.6g} (replace-one) and {told.epsilon_zero_out:.6g} (zero-out)"
        f"{published}, delta_dp {told.delta_dp:g}"
    )


def _counted_line(told: Statement) -> str:
    if told.epsilon_counted is None:
        return ""
    if any(run.sigma_h for run in told.runs):
        return "labels come back to the devices without noise, so no bound holds at all"
    text = (
        f"for devices, which know the batches, this noise gives epsilon {told.epsilon_counted:.6g} "
        "(replace-one) at the least"
    )
    loud = sorted({run.head_rule for run in told.runs if not head_rule_facts(run.head_rule).covered})
    if loud:
        text += f"; head rule {loud[0]} moves w_0 by un-noised labels, so no useful bound holds at all"
    return text


def _released_line(told: Statement, run: RunLine) -> str:
    parts = []
    together = f" ({run.clip:.6g} for a record's {run.directions} numbers together)" if run.directions > 1 else ""
    if run.planned_releases:
        parts.append(
            f"{run.releases:,} of at most {run.planned_releases:,} {released(run.method, run.B, run.directions)}"
            + (f", clip C={run.C:g}{together}, noise sigma_dp={run.sigma_dp:.6g}" if run.sigma_dp else "")
            + (f", without noise; on the uplink noise sigma_h={run.sigma_h:.6g} an entry" if run.sigma_h else "")
        )
    if run.planned_head_steps:
        parts.append(
            f"{run.head_steps:,} of at most {run.planned_head_steps:,} head steps, each record sampled with "
            f"q={run.q:.4g}, noise z={run.z:.4g}"
        )
    which = f"run {run.run_id[:8]}: " if len(told.runs) > 1 else ""
    return which + ("; ".join(parts) if parts else "nothing")


def _risk_line(told: Statement) -> str:
    if told.tpr_at_fpr is None or told.advantage is None:
        return ""
    rates = ", ".join(
        f"{100 * tpr:.3g} % true at {100 * float(fpr):g} % false positives" for fpr, tpr in told.tpr_at_fpr.items()
    )
    return f"best attack on one record: {rates}; advantage {told.advantage:.3g}"
