"""What the claim covers: the request, what it is refused for, what it is warned about."""

from __future__ import annotations

import math
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.accountant import Composition
from dpzv.terms import (
    Accounting,
    HeadRuleName,
    MethodName,
    Neighbours,
    NoiseSourceName,
    Protects,
    StartName,
    Where,
)
from dpzv.validate import fraction, one_of, positive, probability, whole

__all__ = ["ParentRun", "PlanRequest", "check_request", "normalised", "refuse_uncovered", "warnings_of"]


class ParentRun(Struct, frozen=True, kw_only=True):
    """An earlier run on the same records, whose whole claim (`cost`) counts as spent.

    With simulated noise (`noise_source` seeded) it had no guarantee, so nothing built on it has one.
    """

    run_id: str
    data_fingerprint: str
    noise_source: NoiseSourceName
    cost: Composition
    protects: Protects = "records"


class PlanRequest(Struct, frozen=True, kw_only=True):
    """A budget and the training it is for.

    `epsilon` may be infinite (no privacy: no noise, nothing refused for coverage) and only then may `C` be.
    `T` counts the rounds of all `M` devices together. `participations` is how often a record may be in a
    batch at full cost, summed over devices; a record drawn more often is past its cap and contributes 0, so
    the claim does not depend on this number being a bound.

    The budget that `parents` leave is a squared mu, split by shares: `start_share` for all dp-pca starts together,
    `head_share` for a dp-sgd head, the rest for the releases; a share that nothing uses is not looked at. A dp-sgd
    head makes `head_steps` steps over an expected `head_batch` of the `D` records; without rounds (``T = 0``) it gets
    all that the starts leave, and with ``head_steps = 0`` as well nothing is spent.

    `method` says what a release is: one number over a batch, or more (the rivals). With `where` = uplink a rival's
    embeddings, clipped to norm `C_h`, get the noise instead, as published; that protects nothing against devices.
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
    head_batch: int = 0
    head_steps: int = 0
    head_share: float = 0.5
    parents: tuple[ParentRun, ...] = ()
    method: MethodName = "dpzv"
    where: Where = "downlink"
    C_h: float = math.inf


def normalised(asked: PlanRequest) -> PlanRequest:
    """`asked` with 0 for what its starts and its head rule do not look at."""
    if "dp-pca" not in asked.starts:
        asked = replace(asked, start_share=0.0)
    if asked.head_rule != "dp-sgd":
        asked = replace(asked, head_batch=0, head_steps=0, head_share=0.0)
    return asked if asked.where == "uplink" else replace(asked, C_h=math.inf)


def check_request(asked: PlanRequest) -> None:
    """Refuse what makes no sense whatever is covered: names, ranges, sizes."""
    one_of("accounting", asked.accounting, get_args(Accounting))
    one_of("neighbours", asked.neighbours, get_args(Neighbours))
    one_of("protects", asked.protects, get_args(Protects))
    one_of("head rule", asked.head_rule, get_args(HeadRuleName))
    one_of("method", asked.method, get_args(MethodName))
    one_of("noise.where", asked.where, get_args(Where))
    for start in asked.starts:
        one_of("start", start, get_args(StartName))
    positive("epsilon", asked.epsilon)
    probability("delta_dp", asked.delta_dp)
    positive("C", asked.C)
    for name, value in {"B": asked.B, "D": asked.D, "M": asked.M, "min_batch": asked.min_batch}.items():
        whole(name, value, 1)
    whole("participations", asked.participations, 1 if whole("T", asked.T, 0) else 0)
    if asked.B > asked.D:
        raise ConfigError(f"a batch holds at most all D={asked.D} records, got B={asked.B}; lower B.")
    if len(asked.starts) != asked.M:
        raise ConfigError(
            f"expected one start for each of the M={asked.M} devices, got {len(asked.starts)}; give a start per device."
        )
    if "dp-pca" in asked.starts and fraction("start_share", asked.start_share) == 0:
        raise ConfigError("a dp-pca start needs a share of the budget, got start_share=0; raise it above 0.")
    if asked.head_rule == "dp-sgd":
        _check_head(asked)
    _check_method(asked)


def _check_method(asked: PlanRequest) -> None:
    """Refuse what a method has no place for."""
    if asked.method == "dpzv" and asked.where == "uplink":
        raise ConfigError(
            "dpzv's noise is on the number that comes back, got noise.where=uplink; choose downlink, or a rival."
        )
    if asked.method != "dpzv" and asked.head_rule == "joint-zo":
        raise ConfigError(
            f"head rule joint-zo needs dpzv's two evaluations, got method {asked.method}; choose another head rule."
        )


def _check_head(asked: PlanRequest) -> None:
    """Refuse a dp-sgd head without steps, batch or budget."""
    if not whole("head_steps", asked.head_steps, 1 if asked.T else 0):
        return
    if whole("head_batch", asked.head_batch, 1) > asked.D:
        raise ConfigError(
            f"the head's expected batch holds at most all D={asked.D} records, got head_batch={asked.head_batch}; "
            "lower head_batch."
        )
    if asked.T and fraction("head_share", asked.head_share) == 0:
        raise ConfigError("a dp-sgd head needs a share of the budget, got head_share=0; raise it above 0.")
    taken = asked.head_share + (asked.start_share if "dp-pca" in asked.starts else 0.0)
    if asked.T and taken >= 1:
        raise ConfigError(
            f"head_share and start_share together must stay below 1, got {taken:g}; the releases need the rest."
        )


def refuse_uncovered(asked: PlanRequest) -> None:
    """Refuse what a claim would not cover, naming the choices; without a budget there is no claim."""
    if math.isinf(asked.epsilon):
        return
    if asked.protects == "labels" and asked.neighbours == "zero-out":
        raise PrivacyRefused(
            "zero-out does not bound what is learnt about a label, got protects=labels with "
            "neighbours=zero-out; choose neighbours=replace-one or protects=records."
        )
    if asked.protects == "records" and any(parent.protects == "labels" for parent in asked.parents):
        raise PrivacyRefused(
            "an earlier run protected labels only, so its releases may carry features without noise, got "
            "protects=records now; choose protects=labels or other records."
        )
    if asked.parents and asked.accounting == "paper":
        raise PrivacyRefused(
            "the published rule knows no earlier runs, got parents with accounting=paper; choose accounting=exact."
        )
    if asked.accounting == "paper" and asked.head_rule == "dp-sgd":
        raise PrivacyRefused(
            "the published rule has no private head, got head rule dp-sgd with accounting=paper; choose head rule "
            "sgd, zo, joint-zo or frozen, or accounting=exact."
        )
    if asked.T and asked.min_batch > asked.B:
        raise PrivacyRefused(
            f"a release must be over at least min_batch={asked.min_batch} records, got B={asked.B}; "
            "raise B or lower min_batch."
        )
    if asked.where == "uplink" and asked.T:
        _refuse_useless(asked)
        return
    if asked.T == 0:
        # nothing is released: any start is covered, and any head that stays at the server; a dp-sgd head may leave
        if asked.head_rule == "dp-sgd" and asked.head_steps:
            _refuse_inexact(asked)
        return
    if math.isinf(asked.C):
        raise PrivacyRefused(
            f"a finite epsilon needs a finite clip, got epsilon={asked.epsilon:g} with C=inf; "
            "set C to a positive number or epsilon to inf."
        )
    if asked.method != "dpzv":
        _refuse_rival(asked)
    if asked.accounting == "exact":
        _refuse_inexact(asked)


def _refuse_useless(asked: PlanRequest) -> None:
    """Refuse noise on the uplink without a clip there, or with a private head, which it makes pointless."""
    if math.isinf(asked.C_h):
        raise PrivacyRefused(
            f"a finite epsilon needs embeddings of bounded norm, got epsilon={asked.epsilon:g} with C_h=inf and "
            "noise.where=uplink; set C_h to a positive number or epsilon to inf."
        )
    if asked.head_rule == "dp-sgd":
        raise PrivacyRefused(
            "noise on the uplink protects no label, so a private head protects nothing, got head rule dp-sgd with "
            "noise.where=uplink; choose head rule sgd, zo or frozen, or noise.where=downlink."
        )


def _refuse_rival(asked: PlanRequest) -> None:
    """Refuse a rival's noise on the downlink where it would not be what is claimed."""
    if asked.accounting == "paper":
        raise PrivacyRefused(
            f"the published rule puts the noise of {asked.method} on its embeddings, got noise.where=downlink with "
            "accounting=paper; choose noise.where=uplink, or accounting=exact."
        )
    if asked.protects == "records" and asked.method in ("vafl", "vfl-czofo"):
        raise PrivacyRefused(
            f"a device of {asked.method} backpropagates through its raw features, so its weights carry them without "
            "noise to every later answer, got protects=records; choose protects=labels, or method dpzv or zoo-vfl."
        )


def _refuse_inexact(asked: PlanRequest) -> None:
    """Refuse a head rule or start that the exact account does not cover."""
    if asked.head_rule not in ("dp-sgd", "joint-zo", "frozen"):
        raise PrivacyRefused(
            f"head rule '{asked.head_rule}' moves w_0 by un-noised labels, which the exact account does not "
            "cover; choose head rule dp-sgd, joint-zo or frozen, or accounting=paper (which is no guarantee)."
        )
    if asked.protects == "records" and "pca" in asked.starts:
        raise PrivacyRefused(
            "start 'pca' reads all records without noise, which protects=records does not cover; "
            "choose start dp-pca, random, gabor or weights, or protects=labels."
        )


def warnings_of(asked: PlanRequest) -> tuple[str, ...]:
    """Sentences about what is allowed but weak."""
    if math.isinf(asked.epsilon):
        return ()
    found = []
    if asked.delta_dp > 1 / asked.D:
        found.append(
            f"delta_dp = {asked.delta_dp:g} is above 1/D = {1 / asked.D:.2g}, so the claim would allow one "
            "record to be given away whole; choose a smaller delta_dp."
        )
    if asked.protects == "labels" and "dp-pca" in asked.starts:
        found.append("the dp-pca starts are charged although labels alone are protected; start pca is free there.")
    return tuple(found)
