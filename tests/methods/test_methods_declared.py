"""Methods, head rules and starts are what the table says: privacy follows the facts and fails closed on names."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tests.oracles import whole
from tests.plans import asked

from dpzv import config as configuration
from dpzv import recipes
from dpzv.declarations import HEAD_RULES, METHODS, STARTS, HeadRuleFacts, MethodFacts, StartFacts, listed
from dpzv.errors import ConfigError, PrivacyRefused
from dpzv.methods.heads import HeadParts, HeadRule, make_head_rule
from dpzv.methods.rules import DeviceRule, Question, ServerRule, Uplink, make_device_rule, make_server_rule
from dpzv.methods.steps import Steps
from dpzv.models.head import Head
from dpzv.models.losses import per_record_loss
from dpzv.privacy.head_steps import HeadNoise
from dpzv.privacy.noise import SeededNoise
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.planning import make_plan
from dpzv.privacy.statement import RunSpent, statement
from dpzv.privacy.wording import Artefact, Statement, artefacts_of
from dpzv.rng import seed_of
from dpzv.zo.directions import layout

LABELS = asked(protects="labels", M=2, starts=("random", "random"))
STEPS = Steps(0.1, 0.0, "constant", 100)
OPEN = Uplink(math.inf, 0.0, lambda shape, stream: np.zeros(shape))
LOSS = per_record_loss("binary")
B, K = 12, 3


def head() -> Head:
    return Head(2 * K, 4, 1, torch.Generator().manual_seed(0))


def parts(**changes: Any) -> HeadParts:
    return replace(HeadParts(head=head(), loss=LOSS, steps=STEPS, seed=5, lam=1e-2), **changes)


def server(name: str, C: float, q: int) -> ServerRule:
    return make_server_rule(name, make_head_rule("frozen", parts()), LOSS, C, q=q, seed=0)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> str:
    """VFL-CZOFO under another name: the facts of its entry, and nothing else anywhere."""
    monkeypatch.setitem(METHODS, "new-czofo", replace(METHODS["vfl-czofo"], name="new-czofo"))
    return "new-czofo"


def told(plan: PrivacyPlan) -> Statement:
    return statement(RunSpent(plan=plan, noise_source="exact", releases=3, epsilon_spent=0.1, run_id="r"))


def artefact(plan: PrivacyPlan, name: str, *, guarantee: bool = True) -> Artefact:
    return next(one for one in artefacts_of([plan], guarantee=guarantee) if one.name == name)


def test_a_copied_method_is_planned_and_refused_as_the_one_it_copies(copied: str) -> None:
    for where in ("downlink", "uplink"):
        plans = [make_plan(replace(LABELS, method=name, where=where, C_h=1.0)) for name in ("vfl-czofo", copied)]
        assert replace(plans[1], method="vfl-czofo") == plans[0]
        texts = [told(plan) for plan in plans]
        assert texts[0].text() == texts[1].text()
        assert texts[0].table() == texts[1].table()
    refusals = []
    for name in ("vfl-czofo", copied):
        with pytest.raises(PrivacyRefused, match="raw features") as refused:
            make_plan(replace(LABELS, method=name, protects="records"))
        refusals.append(str(refused.value).replace(name, "METHOD"))
        with pytest.raises(ConfigError, match="joint-zo"):
            make_plan(replace(LABELS, method=name, head_rule="joint-zo"))
        with pytest.raises(PrivacyRefused, match="on its embeddings"):
            make_plan(replace(LABELS, method=name, accounting="paper"))
    assert refusals[0] == refusals[1]
    plan = make_plan(replace(LABELS, method=copied))
    assert artefact(plan, "w_m") == artefact(make_plan(replace(LABELS, method="vfl-czofo")), "w_m")
    assert not artefact(plan, "w_m").may_leave


def test_several_directions_are_a_fact_and_not_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words about K numbers give a method no directions."""
    one = replace(METHODS["dpzv"], name="one-way", directions=False)
    monkeypatch.setitem(METHODS, "one-way", one)
    assert one.several
    with pytest.raises(ConfigError, match="method one-way has one direction a message"):
        make_plan(replace(LABELS, method="one-way", directions=2))


def test_a_copied_method_runs_on_the_code_of_its_entry(copied: str) -> None:
    network = torch.nn.Linear(4, K)
    device = make_device_rule(copied, network, m=1, seed=0, lam=1e-2, steps=STEPS, uplink=OPEN)
    assert type(device).__name__ == "VflCzofoDevice"
    assert server(copied, 1.0, 5).numbers(B, K) == 5
    tree = configuration.merge(recipes.tree("digits"), {"train": {"method": copied}})
    assert configuration.parse(tree).train.method == copied


def test_a_method_that_nobody_declared_is_refused_everywhere() -> None:
    plan = replace(make_plan(LABELS), method="new-czofo")
    network = torch.nn.Linear(4, K)
    for call in (
        lambda: make_plan(replace(LABELS, method="new-czofo")),
        lambda: artefacts_of([plan], guarantee=True),
        lambda: plan.per_record,
        lambda: told(plan).text(),
        lambda: make_device_rule("new-czofo", network, m=1, seed=0, lam=1e-2, steps=STEPS, uplink=OPEN),
        lambda: server("new-czofo", 1.0, 5),
    ):
        with pytest.raises(ConfigError, match="method 'new-czofo' is not known; did you mean 'vfl-czofo'"):
            call()


def test_a_head_rule_or_start_that_nobody_declared_is_refused_everywhere() -> None:
    plan = make_plan(LABELS)
    for call in (
        lambda: make_plan(replace(LABELS, head_rule="adam")),
        lambda: artefacts_of([replace(plan, head_rule="adam")], guarantee=True),
        lambda: make_head_rule("adam", parts()),
    ):
        with pytest.raises(ConfigError, match="head rule 'adam' is not known"):
            call()
    for call in (
        lambda: make_plan(replace(LABELS, starts=("random", "kaiming"))),
        lambda: artefacts_of([replace(plan, starts=("random", "kaiming"))], guarantee=True),
    ):
        with pytest.raises(ConfigError, match="start 'kaiming' is not known"):
            call()


@pytest.mark.parametrize("key", ["train.method", "head.rule", "devices.start"])
def test_the_configuration_names_the_choices_of_the_table(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"train.method": METHODS, "head.rule": HEAD_RULES, "devices.start": STARTS}[key]
    monkeypatch.setitem(known, "newest", next(iter(known.values())))
    for word, sentence in (
        ("oldest", f"the value 'oldest' is not known; choose one of: {', '.join(known)}."),
        ("[3]", "write text in quotes."),
    ):
        tree = configuration.merge(recipes.tree("digits"), configuration.set_key(f"{key}={word}"))
        with pytest.raises(ConfigError) as refused:
            configuration.parse(tree)
        assert str(refused.value).startswith(key)
        assert str(refused.value).endswith(sentence)


def test_an_entry_cannot_be_silent_about_a_fact() -> None:
    for kind in (MethodFacts, HeadRuleFacts, StartFacts):
        assert all(field.required for field in msgspec.structs.fields(kind))


def test_names_are_listed_as_in_a_sentence() -> None:
    facts = list(STARTS.values())
    assert listed(facts[:1]) == "random"
    assert listed(facts[:3]) == "random, columns or weights"


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("C", [0.5, math.inf])
def test_a_method_sends_and_returns_what_its_entry_says(name: str, C: float) -> None:
    facts, q = METHODS[name], 4
    network, x = torch.nn.Linear(5, K), torch.randn(B, 5, generator=torch.Generator().manual_seed(1))
    before = [w.detach().clone() for w in network.parameters()]
    device = make_device_rule(name, network, m=1, seed=0, lam=1e-2, steps=STEPS, uplink=OPEN)
    assert isinstance(device, DeviceRule)
    sent = device.embeddings(x, 0)
    assert [h.shape for h in sent] == [(B, K)] * facts.arrays(1)
    rows, y = torch.zeros(B, 2 * K), (torch.arange(B) % 2).float()
    rule = server(name, C, q)
    answer = rule.answer(Question(1, 1, 0, rows, slice(0, K), tuple(h.numpy(force=True) for h in sent), y, 1e-2))
    assert len(answer.totals) == facts.numbers(B, K, q, 1, C < math.inf) == rule.numbers(B, K)
    assert answer.divisor == (1 if facts.per_record else B)
    device.update(answer.totals * answer.grid / answer.divisor, position=0, t=1)
    # a device that only moves along directions u moves in their span; it has no more of them than it sends arrays
    moved = torch.cat([(w.detach() - old).flatten() for w, old in zip(network.parameters(), before, strict=True)])
    seeds = [seed_of(0, "direction", 1, number) for number in range(facts.arrays(1))]
    u = torch.stack([torch.cat([v.flatten() for v in whole(layout(network), seed)]) for seed in seeds], dim=1)
    along = u @ torch.linalg.lstsq(u, moved[:, None]).solution[:, 0]
    assert (float(along.norm() / moved.norm()) < 0.999) is facts.backpropagates


@pytest.mark.parametrize("name", HEAD_RULES)
def test_a_head_rule_is_found_and_private_ones_need_noise(name: str) -> None:
    facts = HEAD_RULES[name]
    if facts.mechanism:
        with pytest.raises(ConfigError, match="private head needs"):
            make_head_rule(name, parts())
    noise = HeadNoise(SeededNoise(0), D=B, batch=B, z=1.0, C_0=1.0)
    rule = make_head_rule(name, parts(table=torch.zeros(B, 2 * K), y=torch.zeros(B), noise=noise))
    assert isinstance(rule, HeadRule)
    assert rule.noise_state == ()


def test_the_servers_directions_are_no_devices() -> None:
    """joint-zo moves w_0 along directions of its own; with a device's, that device would know how w_0 moved."""
    w_0 = head()
    before = [w.detach().clone() for w in w_0.parameters()]
    make_head_rule("joint-zo", parts(head=w_0)).move(7, np.array([2.0]), torch.zeros(0), torch.zeros(0), 0)
    moved = torch.cat([(old - w.detach()).flatten() for w, old in zip(w_0.parameters(), before, strict=True)])
    own, device = (torch.cat([v.flatten() for v in whole(layout(w_0), seed_of(5, "direction", m, 7))]) for m in (0, 1))
    assert torch.allclose(moved, 0.1 * 2.0 * own, atol=1e-6)
    assert not torch.allclose(moved, 0.1 * 2.0 * device, atol=1e-2)


@pytest.mark.parametrize("name", METHODS)
def test_the_weights_of_a_device_that_backpropagates_may_not_leave(name: str) -> None:
    row = artefact(make_plan(replace(LABELS, method=name)), "w_m")
    assert row.may_leave is not METHODS[name].backpropagates
    expected = (
        "backpropagation put its raw features into it" if METHODS[name].backpropagates else "follows from its start"
    )
    assert row.why.startswith(expected)
    idle = make_plan(replace(LABELS, method=name, T=0, participations=0))  # nothing was ever backpropagated
    assert artefact(idle, "w_m").may_leave


class Remembering(HeadNoise):
    """Made-up noise that is shared between steps: each adds what the one before added as well."""

    def init(self, shapes: Any) -> tuple[np.ndarray, ...]:
        return (np.zeros(1),)

    def update(self, state: Any, stream: Any, shapes: Any) -> Any:
        return [np.full(shape, state[0][0]) for shape in shapes], (state[0] + 1,)


def test_a_private_head_hands_the_state_of_its_noise_from_step_to_step() -> None:
    noise = Remembering(SeededNoise(0), D=B, batch=B, z=1.0, C_0=1e-9)
    w_0 = head()
    rule = make_head_rule("dp-sgd", parts(head=w_0, table=torch.zeros(B, 2 * K), y=torch.zeros(B), noise=noise))
    before = w_0.out.bias.detach().clone()
    rule.move(1, np.zeros(1), torch.zeros(0), torch.zeros(0), 3)
    assert rule.noise_state == (np.array([3.0]),)
    assert (before - w_0.out.bias).item() == pytest.approx(0.1 * (0 + 1 + 2) / B, rel=1e-4)
