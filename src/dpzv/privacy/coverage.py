"""Refuses what a claim would not cover before anything is planned, in a sentence that names the choices."""

from __future__ import annotations

import math

from dpzv.declarations import HEAD_RULES, METHODS, STARTS, head_rule_facts, listed, method_facts, start_facts
from dpzv.errors import PrivacyRefused
from dpzv.privacy.plan import PlanRequest

__all__ = ["refuse_uncovered"]


def refuse_uncovered(asked: PlanRequest) -> None:
    """Refuse what a claim would not cover, naming the choices."""
    if asked.protects == "labels" and asked.neighbours == "zero-out":
        raise PrivacyRefused(
            "zero-out does not bound what is learnt about a label, got protects=labels with "
            "neighbours=zero-out; choose neighbours=replace-one or protects=records."
        )
    if asked.protects == "records" and any(parent.protects == "labels" and parent.counts for parent in asked.parents):
        raise PrivacyRefused(
            "an earlier run protected labels only, so its releases may carry features without noise, got "
            "protects=records now; choose protects=labels or other records."
        )
    head_rule = head_rule_facts(asked.head_rule)
    if asked.accounting == "paper" and head_rule.mechanism:
        others = listed(facts for facts in HEAD_RULES.values() if not facts.mechanism)
        raise PrivacyRefused(
            f"the published rule has no private head, got head rule {head_rule.name} with accounting=paper; choose "
            f"head rule {others}, or accounting=exact."
        )
    if asked.base_share and (asked.accounting == "paper" or asked.where == "uplink"):
        raise PrivacyRefused(
            "only the exact account with noise on the downlink covers counts of labels, got head.base=count with "
            f"accounting={asked.accounting} and noise.where={asked.where}; give a public number as head.base."
        )
    if asked.T and asked.min_batch > asked.D:
        raise PrivacyRefused(
            f"a release must be over at least privacy.min_batch={asked.min_batch} records, got only {asked.D} to train "
            "on; lower privacy.min_batch, or set train.rounds=0, with which nothing is released."
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
        # nothing is released: any start is covered, and any head that stays at the server; but a private head may leave
        if head_rule.mechanism and asked.head_steps:
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
    if head_rule_facts(asked.head_rule).mechanism:
        others = listed(facts for facts in HEAD_RULES.values() if not (facts.mechanism or facts.two_points))
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
