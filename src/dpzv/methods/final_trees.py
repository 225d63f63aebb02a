"""How the final head is fitted as boosted trees, by scikit-learn, and turned into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpzv.methods.final_fits import Sample
from dpzv.models.final_head import TreeHead

__all__ = ["boosted", "tree_head", "trees_fit"]

CELLS = 10_000_000
"""The most numbers, counted once for each output, that trees are fitted to: 100 trees then take ten seconds on a core.
"""
SMALL = 5000
"""With fewer records than this trees are smaller."""
FEWEST_OF_A_CLASS = 10
"""With fewer records in a class there are no trees, since scikit-learn wants to see every class in every fold."""


def trees_fit(part: Sample) -> bool:
    """Whether trees can be fitted to this table in reasonable time, and to labels of which there are enough."""
    affordable = 4 * _affordable(part) >= len(part.ids)
    if part.task == "regression":
        return affordable
    counts = torch.bincount(part.y[part.ids].long(), minlength=max(2, part.outputs))
    return affordable and int(counts.min()) >= FEWEST_OF_A_CLASS


def boosted(part: Sample, trees: int, seed: int) -> Any:
    """scikit-learn's histogram gradient boosting, fitted to (some of) the records of `part`."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # seconds to import
    from threadpoolctl import threadpool_limits

    ids = part.ids[: _affordable(part)]
    kind = HistGradientBoostingRegressor if part.task == "regression" else HistGradientBoostingClassifier
    small = len(ids) < SMALL
    model = kind(
        max_iter=trees,
        max_leaf_nodes=15 if small else 31,
        max_bins=63 if small else 255,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed % 2**32,
    )
    # no weights rather than equal ones, with which a fit takes far longer
    weight = None if part.weight is None else part.weight[ids].cpu().numpy()
    with threadpool_limits(torch.get_num_threads()):
        return model.fit(part.rows[ids].cpu().numpy(), part.y[ids].cpu().numpy(), sample_weight=weight)


def tree_head(model: Any, part: Sample) -> TreeHead:
    """The fitted model as tensors. A node that is a leaf leads to itself."""
    rounds: Sequence[Sequence[Any]] = model._predictors  # for each round one tree, or one a class
    nodes = [tree.nodes for trees in rounds for tree in trees]
    places = max(map(len, nodes))
    state: dict[str, Tensor] = {}

    def table(field: str, dtype: torch.dtype) -> Tensor:
        padded = np.zeros((len(nodes), places), np.float64)
        for i, tree in enumerate(nodes):
            here = np.arange(len(tree))
            found = np.where(tree["is_leaf"], here, tree[field]) if field in ("left", "right") else tree[field]
            padded[i, : len(tree)] = np.where(tree["is_leaf"], 0, found) if field == "feature_idx" else found
        return torch.from_numpy(padded).to(part.rows.device, dtype)

    whole, real = torch.int64, torch.float64
    state["column"], state["threshold"] = table("feature_idx", whole), table("num_threshold", real)
    state["left"], state["right"], state["value"] = table("left", whole), table("right", whole), table("value", real)
    each = len(rounds[0])
    last = part.outputs - 1  # with two classes there is one tree a round, which adds to the second output
    outputs = [i if each > 1 else last for _ in rounds for i in range(each)]
    base = torch.zeros(part.outputs, dtype=real)
    base[-each:] = torch.from_numpy(np.asarray(model._baseline_prediction, np.float64).reshape(-1))
    state["output"], state["base"] = torch.tensor(outputs).to(part.rows.device), base.to(part.rows.device)
    state["depth"] = torch.tensor([max(int(tree["depth"].max()) for tree in nodes)]).to(part.rows.device)
    return TreeHead(state)


def _affordable(part: Sample) -> int:
    """How many records trees are fitted to at most."""
    return CELLS // (part.rows.shape[1] * part.outputs)
