"""`VerticalClassifier` and `VerticalRegressor`: a whole vertical federation behind `fit` and `predict`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from dpzv import config as configuration
from dpzv.config import Config
from dpzv.data.dataset import Records, from_arrays
from dpzv.errors import ConfigError
from dpzv.privacy.statement import spent
from dpzv.privacy.wording import Statement
from dpzv.runtime.device_networks import make_networks
from dpzv.runtime.run_plan import batch_of
from dpzv.runtime.trained_model import merged, train
from dpzv.sklearn.asked_values import check_labels, final_head_of, number_of
from dpzv.sklearn.joined_records import joined, one_frame
from dpzv.sklearn.party_columns import Parties, PartyColumns, Ranges, text_as_places
from dpzv.terms import Task

__all__ = ["VerticalClassifier", "VerticalRegressor"]

OWN = {
    "privacy.epsilon": "epsilon",
    "privacy.delta_dp": "delta",
    "noise.source": "random_state",
    "train.seed": "random_state",
}
"""Keys of the configuration that `settings` may not have, and the parameters that set them."""

LARGEST, WIDEST = 4096, 512
"""Records of a batch at most, since noise falls as 1/B; numbers that a party sends for a record at most."""

ROUNDS = 20
TRAIN = {"directions": 16, "eta_m": 0.03, "momentum": 0.9}
"""Rounds of each party where parties are trained, and how: few messages with many directions each."""

NOT_COVERED = (
    "whatever was read off the records before fit, such as by earlier steps of a pipeline",
    "other fits, such as those of a cross-validation or a search, whose epsilons add up",
)


class Labels(Struct, frozen=True):
    """Labels as the task wants them. `why` says what was read off them without noise; empty: nothing."""

    y: NDArray[Any]
    task: Task
    n_classes: int
    why: str


class VerticalEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators do; `VerticalClassifier` describes it."""

    parties: Parties | None
    ranges: Ranges | None
    epsilon: float
    delta: float
    settings: Mapping[str, Any] | None
    random_state: Any

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")  # a fit that was refused has left other attributes

    def _records(self, X: Any, y: Any, *, number: bool) -> tuple[NDArray[Any], NDArray[Any], Parties | None]:
        """Training records [D, columns] and labels in one order, and the columns of each party."""
        X, y, parties = joined(X, y)
        if parties is not None and self.parties is not None:
            raise ValueError("several frames already say which columns a party has, got `parties` too; leave it out.")
        X = text_as_places(X, self.ranges)
        check_labels(y, number=number)
        x, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2, y_numeric=number)
        return x, y, self.parties if parties is None else parties

    def _features(self, X: Any) -> list[NDArray[np.float32]]:
        """New records as one array a party."""
        check_is_fitted(self)
        X = text_as_places(one_frame(X), self.ranges)
        return self._columns.encoded(validate_data(self, X, reset=False, dtype=np.float64))

    def _train(self, x: NDArray[Any], labels: Labels, parties: Parties | None, out: str | Path | None) -> None:
        """Train on the records `x` [D, columns]; the run's folder is kept if `out` names one."""
        names = [str(name) for name in getattr(self, "feature_names_in_", range(x.shape[1]))]
        with _value_errors(), tempfile.TemporaryDirectory() as scratch:
            columns = PartyColumns(names, x, parties, self.ranges)
            records = Records(columns.encoded(x), labels.y)
            # no record is held out, since whoever uses the estimator tests it; the run's own test figures are not shown
            data = from_arrays(records, records, task=labels.task, n_classes=labels.n_classes, devices=columns.parties)
            config = self._config(len(x), [part.shape[1] for part in data.x_train])
            path = Path(scratch) / "run" if out is None else Path(out)
            model, summary = train(config, data, partial(make_networks, config, data), path, lambda _: True)
            told = _qualified(spent([path]), [*_unprotected(columns, config), *([labels.why] if labels.why else [])])
        self._model, self._columns, self.n_parties_ = model.in_double(), columns, len(columns.parties)
        self.epsilon_, self.guarantee_, self.statement_ = told.epsilon, told.guarantee, told.text()
        self.final_head_ = final_head_of(summary)

    def _config(self, D: int, widths: Sequence[int]) -> Config:
        """The configuration of a run over D records, `widths` columns at the parties."""
        settings = dict(self.settings or {})
        for key in settings:
            if key in OWN or key.startswith("data."):
                remedy = f"set the parameter `{OWN[key]}`" if key in OWN else "leave it out"
                raise ConfigError(f"settings must be keys that the estimator does not set, got '{key}'; {remedy}.")
        tree: dict[str, Any] = {
            "recipe": "scikit-learn",
            "data": {"name": "arrays"},
            "devices": {"embedding": [min(width, WIDEST) for width in widths]},
            "train": {
                **TRAIN,
                "rounds": ROUNDS * len(widths),
                "B": min(D, LARGEST),
                "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
            },
            "head": {"rule": "frozen"},
            "privacy": {
                "epsilon": number_of("epsilon", self.epsilon),
                "delta_dp": number_of("delta", self.delta),
            },
            "noise": {"source": "exact" if self.random_state is None else "seeded"},
        }
        config = configuration.parse(merged(tree, settings))
        if settings.keys() & {"train.rounds", "train.passes"} or _worth_training(config, D, widths):
            return config
        return replace(config, train=replace(config.train, rounds=0))


class VerticalClassifier(ClassifierMixin, VerticalEstimator):  # type: ignore[misc]
    """A classifier whose columns are held by several parties, trained under differential privacy against the parties.

    All parties are played in this process. X is a DataFrame or an array, or one DataFrame a party (a mapping from names
    to frames, or a list of them), whose records are joined by index.

    A party with up to 512 encoded columns sends as many numbers as it has columns, from which the server, which is
    trusted, could compute them back. Nothing is lost, so parties are not trained, nothing is released to them, and
    `epsilon_` is 0. Parties that send fewer numbers (``settings={"devices.embedding": 4}``) are trained, and so are all
    where ``train.rounds`` is set.

    parties: the columns of each party, such as ``{"bank": ["age", "income"], "shop": [2, 3]}``, by names or positions;
        None: one party holds all. Leave it out if X is one frame a party.
    ranges: public knowledge about columns, such as ``{"age": (18, 100), "job": ["clerk", "nurse"]}``: two numbers are
        the lowest and highest value, anything else is the list of the values that there are; one pair of numbers is for
        all columns. Values outside are clipped, and values that are not listed count as one further value. A column
        without a range is standardised by its mean and deviation in the records, and then there is no guarantee.
    classes: the public list of classes; None: those that occur in y, and then there is no guarantee.
    epsilon, delta: the budget of one fit. Several fits on the same records add up, those of a cross-validation too.
    settings: other keys of the configuration, such as ``{"devices.embedding": 4, "train.rounds": 40}``.
    random_state: None draws secret noise, which a guarantee needs. A number makes the fit repeatable: whoever knows it
        can subtract the noise, so the statement says that it is simulated.

    After `fit`: `classes_`, `statement_` (the privacy statement in words), `epsilon_` (its claim), `guarantee_`
    (whether it is one), `final_head_` (how the final head was chosen: its name and setting, the losses of all
    candidates on training records that they were not fitted to, and what untrained parties would have given),
    `n_parties_`, `n_features_in_`, `feature_names_in_`. The final head is fitted to all labels without noise, so
    it and all predictions stay with whoever holds the labels.
    """

    def __init__(
        self,
        parties: Parties | None = None,
        ranges: Ranges | None = None,
        classes: Sequence[Any] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.parties = parties
        self.ranges = ranges
        self.classes = classes
        self.epsilon = epsilon
        self.delta = delta
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any, out: str | Path | None = None) -> Self:
        """Train; `out` names a folder in which the run is kept, so that a later run can name it as its parent."""
        x, y, parties = self._records(X, y, number=False)
        check_classification_targets(y)
        why = "" if self.classes is not None else "the list of classes was read off the labels; give `classes`"
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        unlisted = ~np.isin(y, self.classes_)
        if unlisted.any():
            raise ValueError(
                f"labels must be among the given classes, got {int(unlisted.sum())} that are not, such as "
                f"{y[unlisted][0]!r}; add it to `classes`."
            )
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least two classes, got one class, {self.classes_[0]!r}; add more.")
        n_classes = len(self.classes_)
        codes = np.searchsorted(self.classes_, y)
        self._train(x, Labels(codes, "binary" if n_classes == 2 else "classes", n_classes, why), parties, out)
        return self

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probabilities [records, classes] in the order of `classes_`."""
        x = self._features(X)
        return self._model.probabilities(x)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class of each record."""
        most = self.predict_proba(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[most]
        return found

    def score(self, X: Any, y: Any) -> float:
        """The share of records whose class is predicted; labels are joined by index as in `fit`."""
        X, y, _ = joined(X, y)
        return float(super().score(X, y))


class VerticalRegressor(RegressorMixin, VerticalEstimator):  # type: ignore[misc]
    """A regression over columns that several parties hold; `VerticalClassifier` describes the common parameters.

    target_range: the public (low, high) between which labels are expected; labels outside are allowed. None: they are
        scaled by their mean and deviation in the records, and then there is no guarantee.
    """

    def __init__(
        self,
        parties: Parties | None = None,
        ranges: Ranges | None = None,
        target_range: tuple[float, float] | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.parties = parties
        self.ranges = ranges
        self.target_range = target_range
        self.epsilon = epsilon
        self.delta = delta
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any, out: str | Path | None = None) -> Self:
        """Train; `out` names a folder in which the run is kept, so that a later run can name it as its parent."""
        x, y, parties = self._records(X, y, number=True)
        if self.target_range is None:
            why = "labels were scaled by numbers read off them; give their public `target_range`"
            self._mean, self._unit = float(np.mean(y)), float(np.std(y)) or 1.0
        else:
            low, high = self.target_range
            if not -np.inf < low < high < np.inf:
                raise ValueError(f"target_range must be finite with low < high, got {self.target_range}; set both.")
            why, self._mean, self._unit = "", (low + high) / 2, (high - low) / 4  # most labels are then within -2..2
        self._train(x, Labels((y - self._mean) / self._unit, "regression", 0, why), parties, out)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The predicted number of each record, in the unit of the labels."""
        x = self._features(X)
        return self._model.predictions(x).astype(np.float64) * self._unit + self._mean

    def score(self, X: Any, y: Any) -> float:
        """R^2 of the predictions; labels are joined by index as in `fit`."""
        X, y, _ = joined(X, y)
        return float(super().score(X, y))


def _worth_training(config: Config, D: int, widths: Sequence[int]) -> bool:
    """Whether parties have something to learn, and records enough for a batch that may be released.

    A linear map to at least as many numbers as it has columns loses nothing, so the final head can learn as much from
    an untrained one as from a trained one.
    """
    numbers = configuration.per_device("devices.embedding", config.devices.embedding, len(widths))
    models = configuration.per_device("devices.model", config.devices.model, len(widths))
    narrow = any(number < width for number, width in zip(numbers, widths, strict=True))
    return config.privacy.min_batch <= batch_of(config, D) and (narrow or set(models) != {"linear"})


def _unprotected(columns: PartyColumns, config: Config) -> list[str]:
    """Why scaling breaks the claim, if it does: it may not read off the records what the claim protects."""
    if not columns.read_off or config.privacy.protects == "labels":
        return []
    names = ", ".join(columns.read_off[:5]) + (", ..." if len(columns.read_off) > 5 else "")
    return [f"columns were scaled by numbers read off the records ({names}); give their public `ranges`"]


def _qualified(told: Statement, reasons: list[str]) -> Statement:
    """The run's statement; it is no guarantee if `reasons` say what was read off the records before the run."""
    if told.epsilon == 0:
        reasons = []  # nothing is released that could depend on them
    own = [] if told.guarantee and reasons else [told.guarantee_why]
    return replace(
        told,
        guarantee=told.guarantee and not reasons,
        guarantee_why="; ".join([*own, *reasons]),
        not_covered=(*told.not_covered, *NOT_COVERED),
    )


@contextmanager
def _value_errors() -> Iterator[None]:
    """A `ConfigError` about what the caller gave becomes a `ValueError`, as everywhere in scikit-learn."""
    try:
        yield
    except ConfigError as error:
        raise ValueError(str(error)) from error
