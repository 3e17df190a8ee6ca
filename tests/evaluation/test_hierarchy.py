from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vicinal.data.table import Table
from vicinal.evaluation import evaluate
from vicinal.evaluation.protocol import coarse_columns, coarse_relevances
from vicinal.evaluation.relevance import Relevance
from vicinal.utils.errors import InputError

BIRDS = Table(
    pd.DataFrame(
        {
            "label": ["crow", "crow", "jay", "duck", "duck", "perch"],
            "coarse_2": ["bird", "bird", "bird", "bird", "bird", "fish"],
            "coarse": ["corvid", "corvid", "corvid", "waterfowl", "waterfowl", "percid"],
            "group": [1, 2, 2, 1, 1, 1],
        }
    )
)
ANGLES = np.array([0.0, 0.3, 0.09, 0.2, 0.6, 0.5])
VECTORS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


def test_levels_come_from_fine_to_coarse() -> None:
    assert coarse_columns(BIRDS) == ["coarse", "coarse_2"]


def test_levels_of_queries_and_gallery() -> None:
    queries, gallery = np.array([0, 3]), np.array([1, 2, 4, 5])
    fine = Relevance(BIRDS.labels[queries], BIRDS.labels[gallery])
    levels = coarse_relevances(BIRDS, fine, queries, gallery)
    assert [levels["coarse"].positives(query).tolist() for query in (0, 1)] == [[0, 1], [2]]
    assert [levels["coarse_2"].positives(query).tolist() for query in (0, 1)] == [[0, 1, 2], [0, 1, 2]]


def test_scores_by_hand() -> None:
    table = Table(BIRDS.frame.drop(columns="group"))
    result = evaluate(VECTORS, table, recall_at=[1], hierarchy=True)
    # the first crow's ranking: jay, duck, crow, perch, duck
    assert result.per_query["mAP"][0] == pytest.approx(1 / 3)
    assert result.per_query["coarse/mAP"][0] == pytest.approx((1 + 2 / 3) / 2)
    assert result.per_query["coarse_2/mAP"][0] == pytest.approx((1 + 1 + 1 + 4 / 5) / 4)
    assert result.per_query["coarse/recall@1"][:3].tolist() == [1, 0, 1]
    # a jay has no other jay to find, but corvids
    assert np.isnan(result.per_query["mAP"][2])
    assert result.per_query["coarse/mAP"][2] == pytest.approx((1 + 2 / 3) / 2)
    assert list(result.metrics)[:5] == ["recall@1", "mAP@R", "R-precision", "mAP", "coarse/recall@1"]


def test_table_without_coarse_labels() -> None:
    table = Table(pd.DataFrame({"label": [0, 0]}))
    fine = Relevance(table.labels, table.labels)
    with pytest.raises(InputError, match=r"the table has no column 'coarse' .*; its columns are label"):
        coarse_relevances(table, fine, np.arange(2), np.arange(2))
