"""The facts about every method, head rule and start: tables that all other code asks instead of comparing names.

A new method is its file in `methods/` and one entry here. No field has a default value, so an entry cannot be silent
about a fact, and a name without an entry is refused wherever it comes up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from dpzv.errors import ConfigError
from dpzv.terms import HeadRuleName, MethodName, StartName, Where
from dpzv.validate import one_of

__all__ = [
    "HEAD_RULES",
    "METHODS",
    "OURS",
    "STARTS",
    "HeadRuleFacts",
    "MethodFacts",
    "StartFacts",
    "head_rule_facts",
    "listed",
    "method_facts",
    "refuse_directions",
    "start_facts",
]


class MethodFacts(Struct, frozen=True, kw_only=True):
    """The facts about a method, the algorithm that the rounds follow.

    module: its file in `methods/`; ``some_method.py`` holds the classes ``SomeMethodDevice`` and ``SomeMethodServer``.
    arrays: embeddings that a device sends for a batch, by K (`train.directions`).
    directions: whether a message may have K > 1 directions, so that K numbers come back.
    pairs: whether a message is a pair h_plus, h_minus, whose mean the table keeps, or with K > 1 directions h and
    h_1 .. h_K; of all other messages the table keeps the first array.
    slopes: whether all arrays of a message are the same embedding at weights that are `lam` apart, so that a codec may
    send one of them and how fast it changes.
    numbers: how many numbers come back, by (B, width of an embedding, `train.q`, K, whether answers are clipped).
    per_record: whether each number belongs to one record, instead of being a mean over the batch.
    backpropagates: whether a device moves by gradients through its raw features, so that w_m carries them unnoised.
    published: where the published method puts its noise; only a method with ``uplink`` here can have uplink noise.
    two_points: whether the head is evaluated at +lam and at -lam, which the head rule joint-zo needs.
    releases: what is released, in the words of the privacy statement.
    several: the same words for K > 1 directions a message; nobody reads them of a method without `directions`.
    """

    name: MethodName
    module: str
    arrays: Callable[[int], int]
    directions: bool
    pairs: bool
    slopes: bool
    numbers: Callable[[int, int, int, int, bool], int]
    per_record: bool
    backpropagates: bool
    published: Where
    two_points: bool
    releases: str
    several: str


class HeadRuleFacts(Struct, frozen=True, kw_only=True):
    """The facts about a head rule, by which the server's own model w_0 moves.

    place: ``file.Class`` in `methods/`.
    covered: whether w_0 moves by private quantities only, so that the exact account covers it and it may leave; a rule
    that is not covered reads labels without noise.
    mechanism: the file in `privacy/` that makes the rule's own steps private, which the gate charges; empty: it takes
    no such steps.
    two_points: whether it needs a method that evaluates the head at +lam and at -lam.
    eta_0: its step size where `head.eta_0` is unset; gradient rules tolerate far larger steps than zeroth-order rules.
    With 0 the head never moves.
    """

    name: HeadRuleName
    place: str
    covered: bool
    mechanism: str
    two_points: bool
    eta_0: float

    @property
    def moves(self) -> bool:
        """Whether w_0 moves at all."""
        return self.eta_0 > 0


class StartFacts(Struct, frozen=True, kw_only=True):
    """The facts about a start, which makes a device's weights w_m before the first round.

    reads: whether it reads the records without noise. private: whether it reads them with noise, which is charged.
    given: whether somebody provides the weights, who may have made them from these records.
    whitens: whether what is read becomes a fixed map to columns without correlation, before the weights that are
    trained; if not, it becomes the weights.
    columns: whether a device first sends its encoded columns as they are, as far as an embedding is wide enough.
    """

    name: StartName
    reads: bool
    private: bool
    given: bool
    whitens: bool
    columns: bool


_METHODS = (
    MethodFacts(
        name="dpzv",
        module="dpzv",
        arrays=lambda K: 2 if K == 1 else K + 1,
        directions=True,
        pairs=True,
        slopes=True,
        numbers=lambda B, width, q, K, clipped: K,
        per_record=False,
        backpropagates=False,
        published="downlink",
        two_points=True,
        releases="scalars Delta over B={B} records each",
        several="messages of K={K} numbers Delta over B={B} records each",
    ),
    MethodFacts(
        name="vafl",
        module="vafl",
        arrays=lambda K: 1,
        directions=False,
        pairs=False,
        slopes=False,
        numbers=lambda B, width, q, K, clipped: B * width,
        per_record=True,
        backpropagates=True,
        published="uplink",
        two_points=False,
        releases="answers (one gradient vector for each of B={B} records)",
        several="",
    ),
    MethodFacts(
        name="zoo-vfl",
        module="zoo_vfl",
        arrays=lambda K: 2,
        directions=False,
        pairs=False,
        slopes=True,
        numbers=lambda B, width, q, K, clipped: 1 if clipped else 2,
        per_record=False,
        backpropagates=False,
        published="uplink",
        two_points=False,
        releases="answers (a mean difference, or two mean losses) over B={B} records each",
        several="",
    ),
    MethodFacts(
        name="vfl-czofo",
        module="vfl_czofo",
        arrays=lambda K: 1,
        directions=False,
        pairs=False,
        slopes=False,
        numbers=lambda B, width, q, K, clipped: q,
        per_record=False,
        backpropagates=True,
        published="uplink",
        two_points=False,
        releases="answers (mean differences in a few directions) over B={B} records each",
        several="",
    ),
)

_HEAD_RULES = (
    HeadRuleFacts(
        name="dp-sgd", place="dpsgd.DPSGD", covered=True, mechanism="head_steps", two_points=False, eta_0=1.0
    ),
    HeadRuleFacts(name="joint-zo", place="heads.JointZO", covered=True, mechanism="", two_points=True, eta_0=1e-3),
    HeadRuleFacts(name="frozen", place="heads.Frozen", covered=True, mechanism="", two_points=False, eta_0=0.0),
    HeadRuleFacts(name="sgd", place="heads.OwnSGD", covered=False, mechanism="", two_points=False, eta_0=0.1),
    HeadRuleFacts(name="zo", place="heads.OwnZO", covered=False, mechanism="", two_points=False, eta_0=1e-3),
)

_STARTS = (
    StartFacts(name="random", reads=False, private=False, given=False, whitens=False, columns=False),
    StartFacts(name="columns", reads=False, private=False, given=False, whitens=False, columns=True),
    StartFacts(name="weights", reads=False, private=False, given=True, whitens=False, columns=False),
    StartFacts(name="gabor", reads=False, private=False, given=False, whitens=False, columns=False),
    StartFacts(name="pca", reads=True, private=False, given=False, whitens=False, columns=False),
    StartFacts(name="dp-pca", reads=False, private=True, given=False, whitens=False, columns=False),
    StartFacts(name="whiten", reads=True, private=False, given=False, whitens=True, columns=False),
    StartFacts(name="dp-whiten", reads=False, private=True, given=False, whitens=True, columns=False),
)

OURS: MethodName = "dpzv"
"""The method of the paper; all others are rivals that it is compared with."""

METHODS: dict[MethodName, MethodFacts] = {facts.name: facts for facts in _METHODS}
HEAD_RULES: dict[HeadRuleName, HeadRuleFacts] = {facts.name: facts for facts in _HEAD_RULES}
STARTS: dict[StartName, StartFacts] = {facts.name: facts for facts in _STARTS}


def method_facts(name: MethodName) -> MethodFacts:
    """The entry of a method; a name without one is refused."""
    return METHODS[one_of("method", name, METHODS)]


def refuse_directions(method: MethodName, K: int) -> None:
    """Refuse K > 1 directions a message with a method that has one direction only."""
    if K > 1 and not method_facts(method).directions:
        others = listed(facts for facts in METHODS.values() if facts.directions)
        raise ConfigError(
            f"method {method} has one direction a message, got train.directions={K}; set train.directions=1, or choose "
            f"method {others}."
        )


def head_rule_facts(name: HeadRuleName) -> HeadRuleFacts:
    """The entry of a head rule; a name without one is refused."""
    return HEAD_RULES[one_of("head rule", name, HEAD_RULES)]


def start_facts(name: StartName) -> StartFacts:
    """The entry of a start; a name without one is refused."""
    return STARTS[one_of("start", name, STARTS)]


def listed(facts: Iterable[MethodFacts | HeadRuleFacts | StartFacts]) -> str:
    """The names of entries as ``a, b or c``, for sentences that say what may be chosen."""
    *most, last = (entry.name for entry in facts)
    return f"{', '.join(most)} or {last}" if most else last
