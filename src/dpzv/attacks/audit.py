"""The audit: every strategy attacks one target, and all their bounds together hold at one confidence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from dpzv.attacks.lower_bound import Evidence, epsilon_bound, plain_bound
from dpzv.attacks.networked_runs import networked_run
from dpzv.attacks.readings import is_read, unread
from dpzv.attacks.seeds import known_seeds
from dpzv.attacks.strategies import (
    filled_rows,
    huge_embedding,
    last_direction,
    matched_filter,
    negative,
    repeated_id,
    shared_scale,
)
from dpzv.attacks.target import Target
from dpzv.attacks.whole_runs import whole_runs
from dpzv.declarations import METHODS, head_rule_facts, listed, method_facts
from dpzv.errors import ConfigError
from dpzv.validate import whole

__all__ = [
    "CONFIDENCE",
    "NETWORKED",
    "STRATEGIES",
    "WHOLE",
    "Audit",
    "Finding",
    "Strategy",
    "attack",
    "audit",
    "strategies",
]

CONFIDENCE = 0.9999
"""The confidence of the whole audit. At 95 %, one correct build in twenty would fail."""


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """A named attack. `most` bounds its runs per world where more would show nothing new.

    It applies to heads of one private `mechanism` only (empty: to all heads), and to messages with at least
    `directions` directions.
    """

    name: str
    catches: str
    play: Callable[[Target, int], Evidence]
    most: int
    mechanism: str = ""
    directions: int = 1


STRATEGIES = (
    Strategy(name="matched-filter", catches="too little noise", play=matched_filter, most=1_000_000),
    Strategy(name="negative", catches="a one-sided clip", play=negative, most=400),
    Strategy(name="huge-embedding", catches="an un-noised head", play=huge_embedding, most=400),
    Strategy(name="repeated-id", catches="a batch chosen by a device", play=repeated_id, most=400),
    Strategy(name="known-seeds", catches="noise from a known seed", play=known_seeds, most=400),
    Strategy(name="shared-scale", catches="a row that moves others", play=shared_scale, most=400),
    Strategy(name="filled-rows", catches="sampling of filled rows", play=filled_rows, most=400, mechanism="head_steps"),
    Strategy(name="last-direction", catches="noise that is shared", play=last_direction, most=10_000, directions=2),
)
"""What an audit tries, in this order."""

WHOLE = Strategy(name="whole-runs", catches="missing noise, a bad resume", play=whole_runs, most=1_000_000)
"""Runs from start to end, with a crash in the middle; only on request, since each takes about a tenth of a second."""

NETWORKED = Strategy(
    name="networked-runs",
    catches="the same over a network",
    play=partial(whole_runs, run=networked_run),
    most=1_000_000,
)
"""Such runs between parties that talk, one of which dies; only on request, since each takes a second."""


class Finding(msgspec.Struct, frozen=True):
    """What one strategy shows: epsilon at `delta_dp` is at least `lower_bound`, where `claim` is promised.

    `lower_bound` supposes that the true curve is the claimed one with less noise; `plain_bound` supposes nothing.
    `noise_factor` says how many times smaller than planned the attacked noise must have been; above 1 is a fault.
    `trials` counts runs per world.
    """

    strategy: str
    catches: str
    claim: float
    lower_bound: float
    plain_bound: float
    noise_factor: float
    trials: int

    @property
    def shown(self) -> float:
        """The larger of the two bounds; the confidence covers both, since they follow from the same error rates."""
        return max(self.lower_bound, self.plain_bound)

    @property
    def above(self) -> bool:
        """Whether the claim does not hold."""
        return self.shown > self.claim


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome: the finding nearest to its claim or furthest above it, and all of them.

    With probability `confidence` all bounds hold at once. Epsilons are for replace-one at `delta_dp`.
    """

    recipe: str
    claim: float
    lower_bound: float
    plain_bound: float
    confidence: float
    trials: int
    strategy: str
    delta_dp: float
    noise_source: str
    findings: tuple[Finding, ...]

    @property
    def above(self) -> bool:
        """Whether any strategy shows more than is claimed."""
        return any(finding.above for finding in self.findings)


def strategies(directions: int) -> tuple[Strategy, ...]:
    """The strategies for this many directions a message; they share the confidence, whatever the head rule is."""
    return tuple(strategy for strategy in STRATEGIES if strategy.directions <= directions)


def attack(target: Target, strategy: Strategy, trials: int, share: int = 0) -> Finding:
    """Play one strategy with at most `trials` runs per world; it shares the confidence with `share` - 1 others.

    By default all strategies for the directions of the target share it.
    """
    runs = min(whole("trials", trials, 1), strategy.most)
    evidence = strategy.play(target, runs)
    alpha = (1 - CONFIDENCE) / (share or len(strategies(target.config.train.directions)))
    lower_bound, factor = epsilon_bound(evidence, alpha)
    plain = plain_bound(evidence, alpha)
    return Finding(strategy.name, strategy.catches, evidence.claim, lower_bound, plain, factor, runs)


def audit(target: Target, trials: int, observe: Callable[[Finding], None], whole: int = 0, networked: int = 0) -> Audit:
    """Play every strategy that applies; whole runs, simulated or networked, only where so many per world are asked for.

    `observe` is told each finding. Whole runs are made with any method whose answers are read (`readings.py`); all
    other strategies send pairs of embeddings, as dpzv does.
    """
    method, mechanism, findings = target.config.train.method, head_rule_facts(target.config.head.rule).mechanism, []
    entire = [(strategy, runs) for strategy, runs in ((WHOLE, whole), (NETWORKED, networked)) if runs]
    pairs = method_facts(method).pairs
    if not pairs and not entire:
        known = listed(facts for facts in METHODS.values() if facts.pairs)
        raise ConfigError(
            f"an audit without --whole attacks the releases of {known}, got method '{method}'; add --whole 100."
        )
    if entire and not is_read(method):
        raise ConfigError(f"{unread(method)}, so whole runs of it cannot be audited; choose another method.")
    chosen = strategies(target.config.train.directions) if pairs else ()
    plays = [(strategy, trials) for strategy in chosen if strategy.mechanism in ("", mechanism)]
    for strategy, runs in [*plays, *entire]:
        findings.append(attack(target, strategy, runs, len(chosen) + len(entire)))
        observe(findings[-1])
    worst = max(findings, key=lambda finding: finding.shown / finding.claim)
    return Audit(
        recipe=target.config.recipe,
        claim=worst.claim,
        lower_bound=worst.lower_bound,
        plain_bound=worst.plain_bound,
        confidence=CONFIDENCE,
        trials=worst.trials,
        strategy=worst.strategy,
        delta_dp=target.config.privacy.delta_dp,
        noise_source=target.noise.name,
        findings=tuple(findings),
    )
