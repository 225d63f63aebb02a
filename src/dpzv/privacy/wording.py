"""The words of the privacy statement."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpzv.terms import Accounting, MethodName, Neighbours, NoiseSourceName, Protects

if TYPE_CHECKING:
    from dpzv.privacy.statement import RunLine, Statement

__all__ = ["ACCOUNTANT", "ADVERSARY", "NOT_COVERED", "SAMPLED_HEAD", "UPLINK", "lines_of"]

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
    "other runs on the same records (they add up)",
    "a ledger restored from a backup",
)
_PROTECTED: dict[Protects, str] = {
    "records": "one record at a time: its label, and its features held by devices outside the coalition",
    "labels": "one record's label at a time; its features are not protected",
}
_RELEASES: dict[MethodName, str] = {
    "dpzv": "scalars Delta over B={B} records each",
    "zoo-vfl": "answers (a mean difference, or two mean losses) over B={B} records each",
    "vfl-czofo": "answers (mean differences in a few directions) over B={B} records each",
    "vafl": "answers (one gradient vector for each of B={B} records)",
}
_NEIGHBOURS: dict[Neighbours, str] = {
    "replace-one": "replace-one: what is protected of one record becomes anything else",
    "zero-out": "zero-out: one record's contribution becomes nothing",
}
_NOISE: dict[NoiseSourceName, str] = {
    "exact": "exact: secret, from the operating system's entropy; releases by the discrete Gaussian on integers, "
    "head steps, coins and starts in float64",
    "seeded": "seeded: reproducible, so whoever knows the seed can remove it; for simulation only",
}


def lines_of(told: Statement) -> list[tuple[str, str]]:
    """The statement as (label, text) lines."""
    claim = [
        ("Neighbours", _NEIGHBOURS[told.neighbours]),
        ("Accountant", told.accountant),
        ("Noise", _NOISE[told.noise_source]),
    ]
    return [
        ("Guarantee", f"{'yes' if told.guarantee else 'no'}: {told.guarantee_why}"),
        ("Epsilon", _epsilon_line(told)),
        *_counted_lines(told),
        ("Adversary", told.adversary),
        ("Protected", _protected_line(told)),
        *(claim if math.isfinite(told.epsilon) else []),
        *(("Released", _released_line(told, run)) for run in told.runs),
        *_spent_lines(told),
        *_risk_lines(told),
        *([("Covered", "; ".join(told.covered))] if told.covered else []),
        ("Not covered", "; ".join(told.not_covered)),
        *(("Warning", warning) for warning in told.warnings),
    ]


def _protected_line(told: Statement) -> str:
    if math.isinf(told.epsilon) or any(run.sigma_h for run in told.runs):
        return "nothing"
    aim = "not guaranteed; aimed at is " if told.accounting == "paper" else ""
    return aim + _PROTECTED[told.protects]


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


def _counted_lines(told: Statement) -> list[tuple[str, str]]:
    if told.epsilon_counted is None:
        return []
    if any(run.sigma_h for run in told.runs):
        return [("In truth", "labels come back to the devices without noise, so no bound holds at all")]
    text = (
        f"for devices, which know the batches, this noise gives epsilon {told.epsilon_counted:.6g} "
        "(replace-one) at the least"
    )
    loud = sorted({run.head_rule for run in told.runs} & {"sgd", "zo"})
    if loud:
        text += f"; head rule {loud[0]} moves w_0 by un-noised labels, so no useful bound holds at all"
    return [("In truth", text)]


def _released_line(told: Statement, run: RunLine) -> str:
    parts = []
    if run.planned_releases:
        parts.append(
            f"{run.releases:,} of at most {run.planned_releases:,} {_RELEASES[run.method].format(B=run.B)}"
            + (f", clip C={run.C:g}, noise sigma_dp={run.sigma_dp:.6g}" if run.sigma_dp else "")
            + (f", without noise; on the uplink noise sigma_h={run.sigma_h:.6g} an entry" if run.sigma_h else "")
        )
    if run.planned_head_steps:
        parts.append(
            f"{run.head_steps:,} of at most {run.planned_head_steps:,} head steps, each record sampled with "
            f"q={run.q:.4g}, noise z={run.z:.4g}"
        )
    which = f"run {run.run_id[:8]}: " if len(told.runs) > 1 else ""
    return which + ("; ".join(parts) if parts else "nothing")


def _spent_lines(told: Statement) -> list[tuple[str, str]]:
    if math.isinf(told.epsilon) or not told.epsilon:
        return []
    return [("Spent", f"epsilon about {told.epsilon_spent:.4g}, an estimate below the claim")]


def _risk_lines(told: Statement) -> list[tuple[str, str]]:
    if told.tpr_at_fpr is None or told.advantage is None:
        return []
    rates = ", ".join(
        f"{100 * tpr:.3g} % true at {100 * float(fpr):g} % false positives" for fpr, tpr in told.tpr_at_fpr.items()
    )
    return [("Risk", f"best attack on one record: {rates}; advantage {told.advantage:.3g}")]
