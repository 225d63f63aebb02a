"""What the claim covers: what a request is refused for, and what it is warned about."""

from __future__ import annotations

import math
from typing import get_args

from dpzv.declarations import HEAD_RULES, METHODS, STARTS, head_rule_facts, listed, method_facts, start_facts
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.privacy.plan import PlanRequest, private_starts
from dpzv.terms import Accounting, Neighbours, Protects, Where
from dpzv.validate import fraction, one_of, positive, probability, whole

__all__ = ["check_request", "refuse_uncovered", "warnings_of"]


def check_request(asked: PlanRequest) -> None:
    """Refuse what makes no sense whatever is covered: names, ranges, sizes."""
    one_of("accounting", asked.accounting, get_args(Accounting))
    one_of("neighbours", asked.neighbours, get_args(Neighbours))
    one_of("protects", asked.protects, get_args(Protects))
    one_of("head rule", asked.head_rule, HEAD_RULES)
    one_of("method", asked.method, METHODS)
    one_of("noise.where", asked.where, get_args(Where))
    for start in asked.starts:
        one_of("start", start, STARTS)
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
    if private_starts(asked) and fraction("start_share", asked.start_share) == 0:
        name = asked.starts[private_starts(asked)[0]]
        raise ConfigError(f"a {name} start needs a share of the budget, got start_share=0; raise it above 0.")
    if head_rule_facts(asked.head_rule).sampled:
        _check_head(asked)
    _check_method(asked)


def _check_method(asked: PlanRequest) -> None:
    """Refuse what a method has no place for."""
    method, head_rule = method_facts(asked.method), head_rule_facts(asked.head_rule)
    if asked.where == "uplink" and method.published != "uplink":
        others = listed(facts for facts in METHODS.values() if facts.published == "uplink")
        raise ConfigError(
            f"{method.name}'s noise is on what comes back, got noise.where=uplink; choose downlink, or method {others}."
        )
    if head_rule.two_points and not method.two_points:
        others = listed(facts for facts in METHODS.values() if facts.two_points)
        raise ConfigError(
            f"head rule {head_rule.name} needs the two evaluations of {others}, got method {method.name}; "
            "choose another head rule."
        )


def _check_head(asked: PlanRequest) -> None:
    """Refuse a private head without steps, batch or budget."""
    if not whole("head_steps", asked.head_steps, 1 if asked.T else 0):
        return
    if whole("head_batch", asked.head_batch, 1) > asked.D:
        raise ConfigError(
            f"the head's expected batch holds at most all D={asked.D} records, got head_batch={asked.head_batch}; "
            "lower head_batch."
        )
    if asked.T and fraction("head_share", asked.head_share) == 0:
        raise ConfigError(f"a {asked.head_rule} head needs a share of the budget, got head_share=0; raise it above 0.")
    taken = asked.head_share + (asked.start_share if private_starts(asked) else 0.0)
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
    head_rule = head_rule_facts(asked.head_rule)
    if asked.accounting == "paper" and head_rule.sampled:
        others = listed(facts for facts in HEAD_RULES.values() if not facts.sampled)
        raise PrivacyRefused(
            f"the published rule has no private head, got head rule {head_rule.name} with accounting=paper; choose "
            f"head rule {others}, or accounting=exact."
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
        # nothing is released: any start is covered, and any head that stays at the server; a private head may leave
        if head_rule.sampled and asked.head_steps:
            _refuse_inexact(asked)
        return
    if math.isinf(asked.C):
        raise PrivacyRefused(
            f"a finite epsilon needs a finite clip, got epsilon={asked.epsilon:g} with C=inf; "
            "set C to a positive number or epsilon to inf."
        )
    _refuse_method(asked)
    if asked.accounting == "exact":
        _refuse_inexact(asked)


def _refuse_useless(asked: PlanRequest) -> None:
    """Refuse noise on the uplink without a clip there, or with a private head, which it makes pointless."""
    if math.isinf(asked.C_h):
        raise PrivacyRefused(
            f"a finite epsilon needs embeddings of bounded norm, got epsilon={asked.epsilon:g} with C_h=inf and "
            "noise.where=uplink; set C_h to a positive number or epsilon to inf."
        )
    if head_rule_facts(asked.head_rule).sampled:
        others = listed(facts for facts in HEAD_RULES.values() if not (facts.sampled or facts.two_points))
        raise PrivacyRefused(
            "noise on the uplink protects no label, so a private head protects nothing, got head rule "
            f"{asked.head_rule} with noise.where=uplink; choose head rule {others}, or noise.where=downlink."
        )


def _refuse_method(asked: PlanRequest) -> None:
    """Refuse a method's noise on the downlink where it would not be what is claimed."""
    method = method_facts(asked.method)
    if asked.accounting == "paper" and method.published != "downlink":
        raise PrivacyRefused(
            f"the published rule puts the noise of {method.name} on its embeddings, got noise.where=downlink with "
            "accounting=paper; choose noise.where=uplink, or accounting=exact."
        )
    if asked.protects == "records" and method.backpropagates:
        others = listed(facts for facts in METHODS.values() if not facts.backpropagates)
        raise PrivacyRefused(
            f"a device of {method.name} backpropagates through its raw features, so its weights carry them without "
            f"noise to every later answer, got protects=records; choose protects=labels, or method {others}."
        )


def _refuse_inexact(asked: PlanRequest) -> None:
    """Refuse a head rule or start that the exact account does not cover."""
    if not head_rule_facts(asked.head_rule).covered:
        others = listed(facts for facts in HEAD_RULES.values() if facts.covered)
        raise PrivacyRefused(
            f"head rule '{asked.head_rule}' moves w_0 by un-noised labels, which the exact account does not "
            f"cover; choose head rule {others}, or accounting=paper (which is no guarantee)."
        )
    reading = [name for name in asked.starts if start_facts(name).reads]
    if asked.protects == "records" and reading:
        others = listed(facts for facts in STARTS.values() if not facts.reads)
        raise PrivacyRefused(
            f"start '{reading[0]}' reads all records without noise, which protects=records does not cover; "
            f"choose start {others}, or protects=labels."
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
    if asked.protects == "labels" and private_starts(asked):
        name, free = asked.starts[private_starts(asked)[0]], listed(facts for facts in STARTS.values() if facts.reads)
        found.append(f"the {name} starts are charged although labels alone are protected; start {free} is free there.")
    return tuple(found)
