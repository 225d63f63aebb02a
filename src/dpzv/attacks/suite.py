"""All attacks on a run that has kept the views of its devices. Nothing but these views is attacked.

The run's records are read to score guesses, and for the few that an attack may know. Its ledger says what was promised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dpzv.attacks.feature_inference import from_predictions, from_training, sent_to_server
from dpzv.attacks.findings import AttackRow, RunFacts, Tried, rows_of, true_mu
from dpzv.attacks.label_attacks import completion, label_attacks, ratio
from dpzv.attacks.replay import Coalition, Member
from dpzv.attacks.scored import Truth, truth_of
from dpzv.errors import ConfigError, DataError
from dpzv.models.final_head import load_head
from dpzv.privacy.plan import PrivacyPlan
from dpzv.privacy.statement import read_ledger
from dpzv.runtime.device_view import DeviceView, read_views
from dpzv.runtime.run import load_data

__all__ = ["attack_run"]

Found = tuple[str, str, Sequence[Tried], float | None]
"""An attack's name, its target, its tries, and the mu that bounds it; `None` is what no claim covers."""


def attack_run(run: Path, devices: Sequence[int] = ()) -> list[AttackRow]:
    """The rows of all attacks on the run of a folder, by these devices together.

    By default labels are attacked by all devices together, and the features of the last device by all others.
    """
    views = read_views(run)
    config, M = views[0].config, views[0].shape.M
    data, plan = load_data(config), read_ledger(run / "ledger.sqlite").plan
    if unknown := [m for m in devices if not 1 <= m <= M]:
        raise ConfigError(f"the devices of this run are numbered 1 to {M}, got {unknown[0]}; name some of them.")
    if not any(len(view.t) for view in views):
        raise DataError(f"no device of {run} has received anything; attack a run that has played some rounds.")
    found = list(_found(run, views, sorted(set(devices)), truth_of(data), plan))
    promised = plan.accounting == "exact" and not math.isinf(plan.claimed_epsilon)
    facts = RunFacts(
        method=config.train.method,
        epsilon=plan.epsilon_replace_one if promised else None,
        asked_epsilon=None if math.isinf(config.privacy.epsilon) else config.privacy.epsilon,
        noise=config.noise.where,
        seed=config.train.seed,
        data=data.name,
    )
    return rows_of([one[:3] for one in found], facts, [one[3] for one in found])


def _found(
    run: Path, views: tuple[DeviceView, ...], devices: list[int], truth: Truth, plan: PrivacyPlan
) -> Iterator[Found]:
    M, mu = len(views), true_mu(plan)
    chosen = devices or list(range(1, M + 1))
    coalition = Coalition.of([views[m - 1] for m in chosen])
    tried, evidence = label_attacks(coalition, truth, plan.sigma_dp)
    yield from ((name, "labels", tries, mu) for name, tries in [*tried, *ratio(evidence, truth), *completion(evidence)])
    if outside := [m for m in range(1, M + 1) if m not in chosen] or ([M] if M > 1 else []):
        everybody, last = coalition if len(chosen) == M else None, outside[-1]
        if last in chosen:
            _, evidence = label_attacks(coalition.without(last), truth, plan.sigma_dp)
        whose, sample = views[last - 1], evidence.sample
        x, x_test = whose.x_train[sample.train], whose.x_test[sample.test]
        of_features = mu if plan.protects == "records" else math.inf
        for name, tries in from_training(evidence, x, x_test):
            yield f"{name}, from training", "features", tries, of_features
        if outputs := _outputs(run, everybody, views, sample.test):
            guessed = from_predictions(evidence.own[1], outputs[0], x_test)
            yield "regression, from predictions", "features", guessed, None
    # the trusted server: how much it could rebuild of the first device's features
    for uploads, one in sent_to_server(Member(views[0])):
        yield f"rebuilt from {uploads} uploads", "server", [one], None


@torch.no_grad()
def _outputs(
    run: Path, replayed: Coalition | None, views: tuple[DeviceView, ...], ids: NDArray[np.int64]
) -> list[NDArray[np.float32]]:
    """The final head's outputs for these test records, as somebody may be given them; none of an unfinished run.

    `replayed` are all devices at the end of the run, if it has been replayed already.
    """
    if not (run / "summary.json").exists():
        return []
    if replayed is None:
        replayed = Coalition.of(views)
        for _ in replayed.turns():
            pass
    return [load_head(run / "weights")(torch.from_numpy(replayed.rows(ids, test=True))).numpy()]
