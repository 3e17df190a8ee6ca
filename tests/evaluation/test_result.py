from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.cases import clusters
from vicinal.data.table import Table
from vicinal.evaluation import Evaluation, evaluate
from vicinal.utils.errors import InputError


def test_cmc_is_recall_at_every_k() -> None:
    vectors, labels = clusters(50, 9)
    labels[7] = 99  # without a positive
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})), recall_at=range(1, 50))
    wanted = [result.metrics[f"recall@{k}"] for k in range(1, 50)]
    np.testing.assert_allclose(result.cmc(49), wanted, rtol=1e-12)
    assert result.cmc(3).tolist() == result.cmc(49)[:3].tolist()
    assert result.first_positive_ranks[7] == 0
    for max_k in (0, 51):
        with pytest.raises(InputError, match=f"max_k = {max_k} is out of range; use 1 to 50"):
            result.cmc(max_k)


def test_ties_are_reported() -> None:
    table = Table(pd.DataFrame({"label": ["a", "b", "a", "b"]}))
    result = evaluate(np.ones((4, 3)), table, recall_at=(1,))
    assert result.num_ties == 4  # the only positive of each has the score of two others
    assert "(4 positives tied with other images)" in str(result)
    assert evaluate(np.eye(4)[[0, 1, 0, 1]], table, recall_at=(1,)).num_ties == 0


def test_an_evaluation_without_ranks_has_no_cmc() -> None:
    bare = Evaluation({"mAP": 1.0}, "other", 1, 5, 0, {"mAP": np.ones(1)}, np.arange(1))
    with pytest.raises(InputError, match="first_positive_ranks is empty"):
        bare.cmc(3)
    with pytest.raises(InputError, match=r"max_k = 1\.5 is out of range"):
        bare.cmc(1.5)  # type: ignore[arg-type]


def test_means_are_over_the_queries_that_count() -> None:
    scores = {"mAP": np.array([1.0, 0.5, np.nan]), "coarse/mAP": np.array([1.0, 0.5, 0.0])}
    found, again = (
        Evaluation.from_queries(
            scores,
            protocol="other",
            query_indices=np.arange(3),
            num_gallery=9,
            num_ties=2,
            first_positive_ranks=np.array([1, 2, 0]),
        )
        for _ in range(2)
    )
    assert found != again  # by identity, since arrays have no single truth value
    assert found.metrics == {"mAP": 0.75, "coarse/mAP": 0.5}
    assert (found.num_queries, found.num_gallery, found.num_without_positive, found.num_ties) == (3, 9, 1, 2)
    head, *_ = str(found).splitlines()
    assert head.startswith("other: 3 queries, 9 gallery images (1 queries without a positive left out)")
    assert head.endswith(" (2 positives tied with other images)")


def test_std_is_that_of_the_repetitions() -> None:
    parts = [Evaluation({"mAP": value}, "part", 1, 1, 0, {}, np.arange(1)) for value in (0.5, 0.6, 0.9)]
    assert dataclasses.replace(parts[0], repetitions=tuple(parts)).std == {"mAP": np.std([0.5, 0.6, 0.9], ddof=1)}
    assert parts[0].std == {}
