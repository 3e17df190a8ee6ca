"""Metrics beside those of other libraries: where they agree, and where their definitions are others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score

from tests.evaluation.cases import clusters
from vicinal.data import Table
from vicinal.evaluation import evaluate


def test_agrees_with_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    vectors, labels = clusters(400, 25)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count")
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    ours = evaluate(vectors, Table(pd.DataFrame({"label": labels}))).metrics
    assert [ours["recall@1"], ours["R-precision"], ours["mAP@R"]] == pytest.approx([theirs[name] for name in names])


def test_agrees_with_pytorch_metric_learning_where_it_divides_alike() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    vectors, labels = clusters(400, 25)
    table = Table(pd.DataFrame({"label": labels}))
    names = ("mean_average_precision", "mean_reciprocal_rank")
    for k in (5, 399):
        calculator = AccuracyCalculator(include=names, k=k)
        theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
        ours = evaluate(vectors, table, metrics=[f"mAP@{k}", "positives_recall@5", "MRR"])
        if k == 399:  # the whole ranking: all denominators are R
            assert ours.metrics["MRR"] == pytest.approx(theirs["mean_reciprocal_rank"])
            assert ours.metrics["mAP@399"] == pytest.approx(theirs["mean_average_precision"])
        else:  # cut off they divide by R all the same, so that a perfect ranking of R > k positives has less than 1
            ranks = Ranked(vectors, labels)
            assert theirs["mean_average_precision"] == pytest.approx(ranks.mean_precision_over("R"))
            assert ours.metrics["mAP@5"] == pytest.approx(ranks.mean_precision_over("min(5, R)"))
            assert ours.metrics["mAP@5"] > 1.5 * theirs["mean_average_precision"]


class Ranked:
    """All rankings by a full sort in float64, as booleans [rows, rows - 1]."""

    def __init__(self, vectors: np.ndarray, labels: np.ndarray) -> None:
        scores = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
        np.fill_diagonal(scores, -np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :-1]
        self.hits = labels[order] == labels[:, None]

    def mean_precision_over(self, denominator: str) -> float:
        """The precisions at the positives among the first five, summed and divided."""
        hits, totals = self.hits[:, :5], self.hits.sum(axis=1)
        sums = (hits * hits.cumsum(axis=1) / np.arange(1, 6)).sum(axis=1)
        return float((sums / (totals if denominator == "R" else np.minimum(totals, 5))).mean())


def test_labels_above_two_to_the_24_do_not_collide() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    vectors, labels = clusters(60, 12)
    large = labels + 2**24
    ours = evaluate(vectors, Table(pd.DataFrame({"label": large}))).metrics
    assert ours == evaluate(vectors, Table(pd.DataFrame({"label": labels}))).metrics
    calculator = AccuracyCalculator(include=("precision_at_1",), k="max_bin_count")
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(large))["precision_at_1"]
    assert theirs > ours["recall@1"]  # in float32 there, in which every other of these numbers is its neighbor


def test_agrees_with_torchmetrics() -> None:
    from torchmetrics.functional.retrieval import (
        retrieval_average_precision,
        retrieval_precision,
        retrieval_r_precision,
        retrieval_recall,
        retrieval_reciprocal_rank,
    )

    vectors, labels = clusters(60, 7)
    cosines = torch.from_numpy(vectors.astype(np.float64) @ vectors.T.astype(np.float64))
    scores = cosines + 1  # of negative scores it takes none for a positive
    result = evaluate(
        vectors, Table(pd.DataFrame({"label": labels})), metrics=["precision@5", "positives_recall@5", "MRR"]
    )
    theirs = {
        "precision@5": lambda scores, hits: retrieval_precision(scores, hits, top_k=5),
        "positives_recall@5": lambda scores, hits: retrieval_recall(scores, hits, top_k=5),
        "R-precision": retrieval_r_precision,
        "MRR": retrieval_reciprocal_rank,
        "mAP": retrieval_average_precision,
    }
    for name, function in theirs.items():
        wanted = []
        for row in range(60):
            others = np.delete(np.arange(60), row)
            wanted.append(float(function(scores[row, others], torch.from_numpy(labels[others] == labels[row]))))
        np.testing.assert_allclose(result.per_query[name], wanted, rtol=1e-6)
    hits = torch.from_numpy(labels == labels[0])
    assert float(retrieval_average_precision(cosines[0, 1:], hits[1:])) > 1.2 * result.per_query["mAP"][0]


def test_full_average_precision_agrees_with_scikit_learn() -> None:
    vectors, labels = clusters(70, 7)  # few enough that no two similarities are equal in float32
    similarities = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    wanted = [
        average_precision_score(np.delete(labels == labels[row], row), np.delete(similarities[row], row))
        for row in range(70)
    ]
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})))
    np.testing.assert_allclose(result.per_query["mAP"], wanted, rtol=1e-9)
