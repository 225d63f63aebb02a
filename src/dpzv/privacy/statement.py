"""The claim of one or more runs in figures, from their plans and ledgers; `wording.py` puts it into words."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from dpzv.declarations import start_facts
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy import wording
from dpzv.privacy.accountant import Composition, compose, delta_of_parts, epsilon_of_parts, fold, sampled, tpr_of_parts
from dpzv.privacy.events import Event, Releases, Start, unit_mu, unpacked
from dpzv.privacy.gdp import epsilon_of, mu_of, true_mu_of_paper
from dpzv.privacy.head_steps import HeadSteps, steps_of
from dpzv.privacy.label_counts import LabelCounts
from dpzv.privacy.ledger_file import ENDED, ledgers_at, meta_of, snapshot
from dpzv.privacy.plan import ParentRun, PrivacyPlan, epsilon_spent
from dpzv.sensitivity import clip_factor
from dpzv.terms import Accounting, Neighbours, NoiseSourceName, Protects

__all__ = ["LedgerView", "RunSpent", "largest_sum", "parts_of", "read_ledger", "read_ledgers", "spent", "statement"]

_RATES = (0.01, 0.001)


class PlanPart(Struct, frozen=True, kw_only=True):
    """One part of a plan. `mu` is its share of the budget, `epsilon` what it would cost alone at delta_dp.

    `q`, `z` and `steps` describe a sampled head and are None for the Gaussian parts.
    """

    name: str
    mu: float
    epsilon: float
    q: float | None = None
    z: float | None = None
    steps: int | None = None


def parts_of(plan: PrivacyPlan) -> tuple[PlanPart, ...]:
    """Starts, releases, head and earlier runs, each on its own, for the plan's neighbours."""
    claim = plan.claim

    def alone(*kinds: type[Event]) -> float:
        cost = fold(event for event in claim if isinstance(event, kinds))
        return epsilon_of_parts(cost, plan.delta_dp, plan.neighbours)

    found = []
    if any(isinstance(event, Start) for event in claim):
        joint = math.sqrt(math.fsum(mu**2 for mu in plan.mu_start))
        found.append(PlanPart(name="starts", mu=joint, epsilon=alone(Start)))
    if plan.mu_base:
        found.append(PlanPart(name="label counts", mu=plan.mu_base, epsilon=alone(LabelCounts)))
    if plan.T:
        found.append(PlanPart(name="releases", mu=plan.mu, epsilon=alone(Releases)))
    if plan.head_steps:
        epsilon = alone(HeadSteps) if steps_of(claim) else math.inf
        head = PlanPart(name="head", mu=plan.mu_head, epsilon=epsilon, q=plan.q, z=plan.z, steps=plan.head_steps)
        found.append(head)
    if plan.parents:
        names = ", ".join(parent.run_id[:8] for parent in plan.parents)
        epsilon = epsilon_of_parts(plan.before, plan.delta_dp, plan.neighbours)
        found.append(PlanPart(name=f"earlier runs {names}", mu=plan.mu_parents, epsilon=epsilon))
    return tuple(found)


class RunSpent(Struct, frozen=True, kw_only=True):
    """One run as its ledger knows it: `releases` and charged `head_steps` so far, out of its plan."""

    plan: PrivacyPlan
    noise_source: NoiseSourceName
    releases: int
    epsilon_spent: float
    head_steps: int = 0
    run_id: str = ""


def statement(*runs: RunSpent) -> wording.Statement:
    """One statement for all `runs`, as if they shared all their records; what their parents spent is in it, once.

    Refused when the runs do not promise the same delta_dp.
    """
    plans = [run.plan for run in runs]
    first = plans[0]
    if len({plan.delta_dp for plan in plans}) > 1:
        raise PrivacyRefused(
            "runs can be added up at one delta_dp only, got "
            + ", ".join(f"{plan.delta_dp:g}" for plan in plans)
            + "; state them apart."
        )
    accounting: Accounting = "paper" if any(plan.accounting == "paper" for plan in plans) else "exact"
    protects: Protects = "labels" if any(plan.protects == "labels" for plan in plans) else "records"
    neighbours: Neighbours = first.neighbours
    if any(plan.neighbours != neighbours for plan in plans):
        neighbours = "replace-one"  # the stronger claim of the two
    cost = _joint_cost(runs)
    epsilons = _epsilons(plans, cost)
    spends = any(plan.spends for plan in plans)
    finite = spends and all(math.isfinite(plan.claimed_epsilon) for plan in plans)
    claims = finite and accounting == "exact"
    guarantee, why = _verdict(runs)
    rule = wording.UPLINK if any(plan.sigma_h for plan in plans) else wording.ACCOUNTANT
    return wording.Statement(
        epsilon=epsilons[neighbours],
        epsilon_zero_out=epsilons["zero-out"],
        epsilon_replace_one=epsilons["replace-one"],
        epsilon_spent=_spent(runs, epsilons[neighbours]),
        epsilon_counted=_counted(plans) if finite and accounting == "paper" else None,
        delta_dp=first.delta_dp,
        accounting=accounting,
        neighbours=neighbours,
        protects=protects,
        adversary=wording.ADVERSARY,
        accountant=rule[accounting] + (wording.SAMPLED_HEAD if sampled(cost) else ""),
        noise_source="seeded" if any(run.noise_source == "seeded" for run in runs) else "exact",
        releases=sum(run.releases for run in runs),
        head_steps=sum(run.head_steps for run in runs),
        tpr_at_fpr={f"{rate:g}": tpr_of_parts(cost, rate) for rate in _RATES} if claims else None,
        advantage=delta_of_parts(cost, 0.0, "replace-one") if claims else None,
        covered=_covered(plans) if claims or not spends else (),
        not_covered=_not_covered(plans),
        artefacts=wording.artefacts_of(plans, guarantee=guarantee),
        runs=tuple(_line(run) for run in runs),
        guarantee=guarantee,
        guarantee_why=why,
        warnings=tuple(dict.fromkeys(warning for plan in plans for warning in plan.warnings)),
    )


class LedgerView(Struct, frozen=True, kw_only=True):
    """One moment of a ledger. `turns` is how far each device came in its schedule, by its number.

    `ended` is whether the run was ended for good, so that nothing more can happen in it. `even` is whether all batches
    had the planned size.
    """

    run_id: str
    data_fingerprint: str
    noise_source: NoiseSourceName
    plan: PrivacyPlan
    releases: int
    head_steps: int
    turns: dict[int, int]
    ended: bool
    even: bool


def read_ledger(path: Path) -> LedgerView:
    """The ledger file `path`, or the one in the run folder `path`; the run may be alive."""
    return snapshot(path / "ledger.sqlite" if path.is_dir() else path, _view)


def read_ledgers(paths: Sequence[Path]) -> list[tuple[Path, LedgerView]]:
    """The ledgers of all runs at and below `paths`, with their files; refused if a run is there twice."""
    found = [(file, read_ledger(file)) for file in dict.fromkeys(file for path in paths for file in ledgers_at(path))]
    if len({view.run_id for _, view in found}) < len(found):
        raise PrivacyRefused("the same run was given twice (a copied folder is the same run); name each run once.")
    return found


def largest_sum(view: LedgerView) -> float:
    """A bound on every record's sum of (C / (B sigma_dp))^2 so far: infinite if batches had other sizes than planned.

    After n turns of a device no record was in more than ceil(n*B/D) of its batches (`BatchSchedule`).
    """
    plan = view.plan
    if not view.releases:
        return 0.0
    most = sum(-(-turns * plan.B // plan.D) for turns in view.turns.values())
    return most * unit_mu(plan.release(t=0, m=0, position=0, B=plan.B)) ** 2 if view.even else math.inf


def _view(connection: sqlite3.Connection) -> LedgerView:
    meta = meta_of(connection)
    events = connection.execute("SELECT event FROM events")
    plan = unpacked(meta["plan"], PrivacyPlan)
    rows = connection.execute("SELECT m, COUNT(*), MAX(position) + 1, MIN(B), MAX(B) FROM releases GROUP BY m")
    counted: list[tuple[int, int, int, int, int]] = rows.fetchall()
    return LedgerView(
        run_id=meta["run_id"],
        data_fingerprint=meta["data_fingerprint"],
        noise_source="exact" if meta["noise_source"] == "exact" else "seeded",
        plan=plan,
        releases=sum(releases for _, releases, *_ in counted),
        head_steps=steps_of([unpacked(packed, Event) for (packed,) in events]),
        turns={m: turns for m, _, turns, *_ in counted},
        ended=ENDED in meta,
        even=all(least == most == plan.B for *_, least, most in counted),
    )


def spent(paths: Sequence[Path]) -> wording.Statement:
    """The statement of all runs at and below `paths`, added up as if they shared all their records.

    Formal guarantee: the runs and their parents, each at its caps, are jointly (epsilon, delta_dp)-DP for a record that
    any of them trained on. Refused when one is given twice.
    """
    if not paths:
        raise ConfigError("expected at least one run folder, got none; name the runs to add up.")
    return statement(*(_run(view) for _, view in read_ledgers(paths)))


def _run(view: LedgerView) -> RunSpent:
    """What a run has spent so far, if each device's schedule went through all records in turn."""
    plan = view.plan
    square = min(plan.cap, largest_sum(view)) if math.isfinite(plan.cap) else 0.0
    return RunSpent(
        run_id=view.run_id,
        plan=plan,
        noise_source=view.noise_source,
        releases=view.releases,
        head_steps=view.head_steps,
        epsilon_spent=epsilon_spent(plan, view.releases, square, view.head_steps),
    )


def _joint_cost(runs: Sequence[RunSpent]) -> Composition:
    """All runs and all their parents, as if they shared all their records.

    A run that another one counts as its parent is in that one's claim already. If one run counts all the others and all
    their parents, the joint cost is its claim. Else parents count once, at their caps; but where runs paid only for
    what a parent used, each got the rest for itself, so each counts what it paid.
    """
    counted = {parent.run_id for run in runs for parent in _counted_parents(run)}
    last = [run for run in runs if run.run_id not in counted]
    if len(last) == 1 and counted == {parent.run_id for parent in _counted_parents(last[0])}:
        return last[0].plan.cost
    in_full: dict[str, Composition] = {}
    in_part: list[tuple[str, Composition]] = []
    for run in last:
        parts = {} if run.plan.charges_in_full else {p.run_id: p.used for p in _counted_parents(run) if p.used}
        in_part += [(name, fold(events)) for name, events in parts.items()]
        # a parent that shares no record with this run may share some with another one
        parents = [replace(p, shared=None) for p in run.plan.parents if run.plan.spends and p.run_id not in parts]
        in_full |= {p.run_id: fold(p.charged(in_full=True)) for p in parents}
    paid = {name for name, _ in in_part}
    claims = {run.run_id: fold(run.plan.claim) for run in last}
    whole = {name: cost for name, cost in in_full.items() if name not in paid} | claims
    return compose(*whole.values(), *(cost for _, cost in in_part))


def _counted_parents(run: RunSpent) -> list[ParentRun]:
    """The earlier runs whose cost is in the run's own claim."""
    exact = run.plan.spends and run.plan.accounting == "exact"
    return [parent for parent in run.plan.parents if exact and parent.counts and parent.accounted]


def _epsilons(plans: Sequence[PrivacyPlan], cost: Composition) -> dict[Neighbours, float]:
    """The epsilon of either kind of neighbours: from the plan of a single run, else of everything together."""
    if len(plans) == 1:
        return {"zero-out": plans[0].epsilon_zero_out, "replace-one": plans[0].epsilon_replace_one}
    return {name: epsilon_of_parts(cost, plans[0].delta_dp, name) for name in get_args(Neighbours)}


def _spent(runs: Sequence[RunSpent], epsilon: float) -> float:
    """An estimate of what was spent, never above the claim; each run counts as if it were Gaussian."""
    if len(runs) == 1:
        return runs[0].epsilon_spent
    delta_dp = runs[0].plan.delta_dp
    mu = math.sqrt(sum(mu_of(run.epsilon_spent, delta_dp) ** 2 for run in runs if run.epsilon_spent))
    return min(epsilon, epsilon_of(mu, delta_dp))


def _counted(plans: Sequence[PrivacyPlan]) -> float:
    """The least epsilon of the published noise against devices, which know the batches, and of all other runs."""
    costs = []
    for plan in plans:
        claim = plan.claim
        if plan.where == "uplink" and plan.spends:
            claim = (Releases(cap=math.inf, distance=0.0),)
        elif plan.accounting == "paper" and plan.spends:
            mu = true_mu_of_paper(plan.mu, plan.B, plan.D)
            claim = (Releases(cap=(mu / clip_factor("replace-one")) ** 2, distance=0.0),)
        costs.append(fold(claim))
    return epsilon_of_parts(compose(*costs), plans[0].delta_dp, "replace-one")


def _verdict(runs: Sequence[RunSpent]) -> tuple[bool, str]:
    found = [wording.verdict(run.plan, run.noise_source) for run in runs]
    if len(runs) == 1:
        return found[0]
    for run, (guarantee, why) in zip(runs, found, strict=True):
        if not guarantee:
            return False, f"run {run.run_id[:8]}: {why}"
    return True, f"{len(runs)} runs, added up as if they shared all records, each: {found[0][1]}"


def _covered(plans: Sequence[PrivacyPlan]) -> tuple[str, ...]:
    spending = [plan for plan in plans if plan.spends]
    if not spending:
        return ("nothing is released",)
    names = ["every Delta"] if any(plan.T for plan in spending) else ["w_0, if it leaves (devices are sent nothing)"]
    names += [f"head rule {name}" for name in sorted({plan.head_rule for plan in spending})]
    names += [f"start {name}" for name in sorted({start for plan in spending for start in plan.starts})]
    counts = sorted({event.sigma for plan in spending for event in plan.events if isinstance(event, LabelCounts)})
    names += [f"label counts for the base rate, each with noise of {sigma:.4g} records" for sigma in counts]
    parents = dict.fromkeys(wording.earlier_run(plan, parent) for plan in spending for parent in plan.parents)
    return (*names, *parents)


def _not_covered(plans: Sequence[PrivacyPlan]) -> tuple[str, ...]:
    found = list(wording.NOT_COVERED)
    if any(start_facts(start).given for plan in plans for start in plan.starts):
        found.append("given start weights, if they were made from these records")
    if any(parent.shared is None or parent.shared < plan.D for plan in plans for parent in plan.parents):
        found.append("a choice of settings by the scores of earlier runs on records that they did not train on")
    return tuple(found)


def _line(run: RunSpent) -> wording.RunLine:
    plan = run.plan
    figures = ("B", "C", "clip", "directions", "sigma_dp", "method", "sigma_h", "head_rule", "q", "z")
    return wording.RunLine(
        run_id=run.run_id,
        releases=run.releases,
        planned_releases=plan.T,
        head_steps=run.head_steps,
        planned_head_steps=plan.head_steps,
        **{name: getattr(plan, name) for name in figures},
    )
