from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from vicinal.evaluation import metrics
from vicinal.evaluation.metrics import Ranks
from vicinal.utils.errors import InputError

WHOLE = ("r_precision", "map_at_r", "average_precision", "reciprocal_rank")
RELEVANT = [[1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0] * 6]
RANKS = Ranks(np.concatenate([np.flatnonzero(row) + 1 for row in RELEVANT]), np.array([sum(row) for row in RELEVANT]))


def reference(row: list[int]) -> dict[str, float]:
    """The definitions, spelled out on the list of relevances in the order of the ranking."""
    total = sum(row)
    if not total:
        return dict.fromkeys((*WHOLE, "recall", "precision_at_k", "positives_recall_at_k", "map_at_k"), np.nan)
    precisions = [sum(row[: k + 1]) / (k + 1) * row[k] for k in range(len(row))]
    return {
        "recall": float(any(row[:2])),
        "precision_at_k": sum(row[:4]) / 4,
        "positives_recall_at_k": sum(row[:4]) / total,
        "map_at_k": sum(precisions[:4]) / min(4, total),
        "reciprocal_rank": 1 / (row.index(1) + 1),
        "r_precision": sum(row[:total]) / total,
        "map_at_r": sum(precisions[:total]) / total,
        "average_precision": sum(precisions) / total,
    }


def test_definitions() -> None:
    for name in WHOLE:
        wanted = [reference(row)[name] for row in RELEVANT]
        np.testing.assert_allclose(getattr(metrics, name)(RANKS), wanted, rtol=1e-12, err_msg=name)
    for name in ("precision_at_k", "positives_recall_at_k", "map_at_k"):
        wanted = [reference(row)[name] for row in RELEVANT]
        np.testing.assert_allclose(getattr(metrics, name)(RANKS, 4), wanted, rtol=1e-12, err_msg=name)


def test_every_metric_has_a_name() -> None:
    functions = {
        "recall@3": partial(metrics.recall_at_k, k=3),
        "precision@3": partial(metrics.precision_at_k, k=3),
        "positives_recall@3": partial(metrics.positives_recall_at_k, k=3),
        "mAP@3": partial(metrics.map_at_k, k=3),
        "mAP@R": metrics.map_at_r,
        "mAP": metrics.average_precision,
        "R-precision": metrics.r_precision,
        "MRR": metrics.reciprocal_rank,
    }
    for name, function in functions.items():
        np.testing.assert_array_equal(metrics.metric_by_name(name, 6)(RANKS), function(RANKS))


def test_bad_names() -> None:
    for name in ("recall", "recall@", "recall@x", "recall@1.5", "MRR@3", "map", "", "@3", "F1", "recall@07"):
        with pytest.raises(InputError, match=r"unknown metric .*; use recall@K, positives_recall@K"):
            metrics.metric_by_name(name, 6)
    for name in ("precision@0", "mAP@7", "positives_recall@-1"):
        with pytest.raises(InputError, match=f"{name} is out of range with 6 gallery images; use k from 1 to 6"):
            metrics.metric_by_name(name, 6)


def test_k_of_the_whole_gallery_is_the_full_ranking() -> None:
    np.testing.assert_allclose(metrics.map_at_k(RANKS, 6), metrics.average_precision(RANKS))
    np.testing.assert_array_equal(metrics.positives_recall_at_k(RANKS, 6), [1, 1, 1, 1, np.nan])
    for k in range(1, 7):  # recall of Eq. (1) is at most recall@k, the hit rate
        assert (metrics.positives_recall_at_k(RANKS, k) <= metrics.recall_at_k(RANKS, k))[:4].all()


def test_first_positive_rank() -> None:
    assert metrics.first_positive_rank(RANKS).tolist() == [1, 6, 2, 1, 0]


def test_no_queries() -> None:
    nothing = Ranks(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    assert metrics.map_at_r(nothing).shape == (0,)
