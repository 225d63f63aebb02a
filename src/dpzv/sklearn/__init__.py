"""Vertical federations as scikit-learn estimators; `dpzv.sklearn` is imported only by who asks for it."""

from dpzv.sklearn.estimators import VerticalClassifier, VerticalRegressor
from dpzv.sklearn.joined_records import join_parties

__all__ = ["VerticalClassifier", "VerticalRegressor", "join_parties"]
