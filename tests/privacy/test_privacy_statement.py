"""The statement says what the plan is, and never more."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.plans import asked

from dpzv.privacy.gdp import delta_of, epsilon_of, mu_of, tpr_at_fpr
from dpzv.privacy.planning import make_plan
from dpzv.privacy.statement import RunSpent, statement
from dpzv.privacy.wording import Statement
from dpzv.terms import NoiseSourceName

ASKED = asked(
    C=0.5,
    B=512,
    D=60_000,
    M=2,
    T=600,
    participations=7,
    min_batch=64,
    starts=("random", "dp-pca"),
    start_share=0.2,
)


WITH_HEAD: dict[str, Any] = {"head_rule": "dp-sgd", "head_batch": 6000, "head_steps": 100, "head_share": 0.5}


def told(noise_source: NoiseSourceName = "seeded", **changes: Any) -> Statement:
    plan = make_plan(msgspec.structs.replace(ASKED, **changes))
    run = RunSpent(
        run_id="0123456789",
        plan=plan,
        noise_source=noise_source,
        releases=plan.T // 2,
        head_steps=plan.head_steps // 4,
        epsilon_spent=0.25,
    )
    return statement(run)


def lines(found: Statement) -> dict[str, str]:
    head, *rest = found.text().splitlines()
    assert head == "Privacy statement"
    assert len(rest) <= 17
    return {label.strip(): text.strip() for label, text in (line.split(":", 1) for line in rest)}


def test_an_exact_plan_with_simulated_noise() -> None:
    found = told()
    text = lines(found)
    assert not found.guarantee
    assert "simulated noise: what this plan would guarantee" in text["Guarantee"]
    assert text["Epsilon"] == f"1 (replace-one) and {found.epsilon_zero_out:.6g} (zero-out), delta_dp 1e-06"
    assert "any coalition of devices" in text["Adversary"]
    assert "label, and its features" in text["Protected"]
    assert text["Neighbours"].startswith("replace-one")
    assert text["Accountant"].startswith("exact")
    assert text["Noise"].startswith("seeded")
    assert "300 of at most 600" in text["Released"]
    assert "0.25" in text["Spent"]
    for words in ("uplink", "predictions", "timing and order", "validation", "other runs", "backup"):
        assert words in text["Not covered"]


def test_secret_noise_is_a_guarantee() -> None:
    found = told("exact")
    assert found.guarantee
    assert lines(found)["Guarantee"].startswith("yes")
    assert found.covered == ("every Delta", "head rule frozen", "start dp-pca", "start random")


def test_risk_comes_from_the_replace_one_curve() -> None:
    """Also when the plan counts zero-out, whose own curve would look half as bad."""
    found = told("exact", neighbours="zero-out", starts=("random", "random"))
    mu = 2 * mu_of(1.0, 1e-6)
    assert found.tpr_at_fpr == pytest.approx({"0.01": tpr_at_fpr(mu, 0.01), "0.001": tpr_at_fpr(mu, 0.001)}, rel=1e-9)
    assert found.advantage == pytest.approx(delta_of(0.0, mu), rel=1e-9)
    assert found.epsilon == found.epsilon_zero_out == 1.0
    assert found.epsilon_replace_one == pytest.approx(epsilon_of(mu, 1e-6), rel=1e-9)


def test_the_published_rule_is_called_no_guarantee_with_the_true_figure() -> None:
    found = told("exact", accounting="paper", delta_dp=1e-3, head_rule="sgd", starts=("random", "random"))
    text = lines(found)
    assert not found.guarantee
    assert "reproduces the published rule" in text["Guarantee"]
    assert "not a guarantee against curious devices" in text["Guarantee"]
    assert "21.0866" in text["In truth"]
    assert "no useful bound" in text["In truth"]
    assert "no useful bound" not in lines(told(accounting="paper"))["In truth"]
    assert "1/D" in text["Warning"]
    assert found.covered == ()
    assert found.tpr_at_fpr is None
    assert "Risk" not in text


def test_no_privacy_claims_nothing() -> None:
    found = told(epsilon=math.inf)
    text = lines(found)
    assert "no privacy was asked for" in text["Epsilon"]
    assert text["Protected"] == "nothing"
    assert found.advantage is None


def test_nothing_released() -> None:
    text = lines(told("exact", T=0, participations=0))
    assert text["Epsilon"].startswith("0: nothing is released")
    assert text["Released"] == "nothing"
    assert "Spent" not in text


def test_given_weights_are_named_as_not_covered() -> None:
    assert "given start weights" in lines(told(starts=("weights", "random")))["Not covered"]
    assert "given start weights" not in lines(told())["Not covered"]


def test_labels_protect_no_features() -> None:
    assert "features are not protected" in lines(told(protects="labels", starts=("pca", "pca")))["Protected"]


def test_a_sampled_head_is_in_every_figure() -> None:
    found = told("exact", **WITH_HEAD)
    text = lines(found)
    assert found.guarantee
    assert "privacy loss distributions" in text["Accountant"]
    assert "25 of at most 100 head steps" in text["Released"]
    assert "q=0.1" in text["Released"]
    assert "integers" in text["Noise"]
    assert "head steps and starts by a Gaussian rounded to integers" in text["Noise"]
    assert found.head_steps == 25
    assert found.covered[:2] == ("every Delta", "head rule dp-sgd")
    # the risk is that of the whole: near a Gaussian with the same epsilon, far above that of the releases alone
    mu = mu_of(1.0, 1e-6)
    assert found.advantage == pytest.approx(delta_of(0.0, mu), rel=0.03)
    assert found.tpr_at_fpr == pytest.approx({"0.01": tpr_at_fpr(mu, 0.01), "0.001": tpr_at_fpr(mu, 0.001)}, rel=0.03)


def test_a_head_that_may_leave_without_rounds() -> None:
    text = lines(told("exact", **WITH_HEAD, T=0, participations=0))
    assert text["Epsilon"].startswith("1 (replace-one)")
    assert "Delta" not in text["Released"]
    assert "devices are sent nothing" in text["Covered"]


def test_the_table_of_artefacts() -> None:
    found = {a.name: a for a in told("exact").artefacts}
    assert list(found) == [
        "Deltas",
        "w_m",
        "w_0",
        "final head",
        "predictions",
        "logs and metrics",
        "ledger",
        "checkpoint",
    ]
    assert [name for name, a in found.items() if a.may_leave] == ["Deltas", "w_m", "w_0"]
    features = {a.name: a for a in told("exact", protects="labels", starts=("pca", "pca")).artefacts}
    assert not features["w_m"].may_leave
    assert "features without accounted noise" in features["w_m"].why
    published = told("exact", accounting="paper", head_rule="sgd", starts=("random", "random")).artefacts
    assert "un-noised labels" in {a.name: a for a in published}["w_0"].why
    for nothing in (told("seeded").artefacts, published):
        assert not any(a.may_leave for a in nothing)
    table = told("exact").table().splitlines()
    assert len(table) == 9
    assert table[0].split() == ["artefact", "holder", "may", "leave", "why"]
    assert len({line.index(word) for line, word in ((table[1], "yes"), (table[4], "no "))}) == 1


def test_values_are_ready_for_json() -> None:
    keys = (
        "epsilon epsilon_zero_out epsilon_replace_one delta_dp neighbours protects adversary accountant noise_source "
        "releases head_steps tpr_at_fpr advantage covered not_covered"
    ).split()
    for found in (told("exact"), told(epsilon=math.inf, C=math.inf)):
        values = msgspec.json.decode(msgspec.json.encode(found.values()))
        assert set(keys) <= set(values)
        assert values["epsilon"] == ("inf" if math.isinf(found.epsilon) else 1.0)
    assert values["runs"][0]["C"] == "inf"
