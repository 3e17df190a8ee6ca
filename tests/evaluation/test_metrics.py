from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from vicinal.evaluation import metrics
from vicinal.evaluation.ranking import Ranks

RELEVANT = [[1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0] * 6]
RANKS = Ranks(np.concatenate([np.flatnonzero(row) + 1 for row in RELEVANT]), np.array([sum(row) for row in RELEVANT]))


def reference(row: list[int]) -> dict[str, float]:
    """The definitions, spelled out on the list of relevances in the order of the ranking."""
    total = sum(row)
    if not total:
        return dict.fromkeys(("recall", "r_precision", "map_at_r", "average_precision"), np.nan)
    precisions = [sum(row[: k + 1]) / (k + 1) * row[k] for k in range(len(row))]
    return {
        "recall": float(any(row[:2])),
        "r_precision": sum(row[:total]) / total,
        "map_at_r": sum(precisions[:total]) / total,
        "average_precision": sum(precisions) / total,
    }


@pytest.mark.parametrize("name", ["r_precision", "map_at_r", "average_precision"])
def test_definitions(name: str) -> None:
    wanted = [reference(row)[name] for row in RELEVANT]
    np.testing.assert_allclose(getattr(metrics, name)(RANKS), wanted, rtol=1e-12)


def test_recall_at_k() -> None:
    np.testing.assert_array_equal(metrics.recall_at_k(RANKS, 2), [reference(row)["recall"] for row in RELEVANT])
    np.testing.assert_array_equal(metrics.recall_at_k(RANKS, 5), [1, 0, 1, 1, np.nan])
    np.testing.assert_array_equal(metrics.recall_at_k(RANKS, 6), [1, 1, 1, 1, np.nan])


def test_average_precision_agrees_with_scikit_learn() -> None:
    falling = -np.arange(6.0)
    wanted = [average_precision_score(row, falling) for row in RELEVANT[:4]]
    np.testing.assert_allclose(metrics.average_precision(RANKS)[:4], wanted, rtol=1e-12)


def test_no_queries() -> None:
    nothing = Ranks(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    assert metrics.map_at_r(nothing).shape == (0,)
