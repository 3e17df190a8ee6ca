from __future__ import annotations

import numpy as np
import pytest

from tests.evaluation.cases import scores_of_hits
from vicinal.evaluation import Ranks, metrics
from vicinal.utils.errors import InputError

RELEVANT = [[1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0] * 6]
RANKS = Ranks(np.concatenate([np.flatnonzero(row) + 1 for row in RELEVANT]), np.array([sum(row) for row in RELEVANT]))


def test_definitions() -> None:
    rows = [scores_of_hits(list(map(bool, row)), (2,), 4) for row in RELEVANT]
    for name in rows[0]:
        wanted = [row.get(name, np.nan) for row in rows]
        np.testing.assert_allclose(metrics.metric_by_name(name, 6)(RANKS), wanted, rtol=1e-12, err_msg=name)


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
