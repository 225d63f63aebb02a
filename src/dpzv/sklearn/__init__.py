"""Vertical federations as scikit-learn estimators; nothing else in `dpzv` imports this."""

from dpzv.sklearn.estimators import VerticalClassifier, VerticalRegressor
from dpzv.sklearn.joined_records import join_parties

__all__ = ["VerticalClassifier", "VerticalRegressor", "join_parties"]
