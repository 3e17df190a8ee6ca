from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.cases import clusters
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation import Evaluation, evaluate


def test_cmc_is_recall_at_every_k() -> None:
    vectors, labels = clusters(50, 9)
    labels[7] = 99  # without a positive
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})), recall_at=range(1, 50))
    wanted = [result.metrics[f"recall@{k}"] for k in range(1, 50)]
    np.testing.assert_allclose(result.cmc(49), wanted, rtol=1e-12)
    assert result.cmc(3).tolist() == result.cmc(49)[:3].tolist()
    assert result.first_ranks[7] == 0
    for most in (0, 51):
        with pytest.raises(InputError, match=f"CMC up to {most} is impossible with 50 gallery images"):
            result.cmc(most)


def test_result_can_be_written_and_read() -> None:
    vectors, labels = clusters(1200, 6)
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})))
    assert isinstance(result, Evaluation)
    loaded = json.loads(json.dumps(result.to_dict()))
    assert loaded["metrics"] == result.metrics
    assert (loaded["queries"], loaded["without_positive"], loaded["protocol"]) == (1200, 0, "leave-one-out")
    lines = str(result).splitlines()
    assert lines[0] == "leave-one-out: 1,200 queries, 1,200 gallery images"
    assert lines[1] == f"recall@1      {100 * result.metrics['recall@1']:6.2f} %"


def test_ties_are_reported() -> None:
    table = Table(pd.DataFrame({"label": ["a", "b", "a", "b"]}))
    result = evaluate(np.ones((4, 3)), table, recall_at=(1,))
    assert result.ties == 4  # the only positive of each has the score of two others
    assert result.to_dict()["ties"] == 4
    assert "(4 positives tied with other images)" in str(result)
    assert evaluate(np.eye(4)[[0, 1, 0, 1]], table, recall_at=(1,)).ties == 0


def test_an_evaluation_without_ranks_has_no_cmc() -> None:
    bare = Evaluation({"mAP": 1.0}, "other", 1, 5, 0, {"mAP": np.ones(1)}, np.arange(1))
    with pytest.raises(InputError, match="this evaluation has no first_ranks"):
        bare.cmc(3)
    with pytest.raises(InputError, match=r"CMC up to 1\.5 is impossible"):
        bare.cmc(1.5)  # type: ignore[arg-type]


def test_means_are_over_the_queries_that_count() -> None:
    scores = {"mAP": np.array([1.0, 0.5, np.nan]), "coarse/mAP": np.array([1.0, 0.5, 0.0])}
    found = Evaluation.of_queries(scores, "other", np.arange(3), 9, ties=2, first_ranks=np.array([1, 2, 0]))
    again = Evaluation.of_queries(scores, "other", np.arange(3), 9, ties=2, first_ranks=np.array([1, 2, 0]))
    assert found != again  # by identity, for arrays have no one truth
    assert found.metrics == {"mAP": 0.75, "coarse/mAP": 0.5}
    assert (found.queries, found.gallery, found.without_positive, found.ties) == (3, 9, 1, 2)
    head, *_ = str(found).splitlines()
    assert head.startswith("other: 3 queries, 9 gallery images (1 queries without a positive left out)")
    assert head.endswith(" (2 positives tied with other images)")
