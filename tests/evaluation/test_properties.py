"""What holds for any embeddings and labels, and metrics beside those of other libraries."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import average_precision_score
from torchmetrics.functional.retrieval import (
    retrieval_precision,
    retrieval_r_precision,
    retrieval_recall,
    retrieval_reciprocal_rank,
)

from tests.evaluation.cases import brute_force, clusters
from tests.retrieval.reranking.rerank_references import lattice
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.utils.errors import InputError

MORE = ("precision@2", "positives_recall@2", "mAP@2", "MRR")


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(6, 40),
    classes=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    sides=st.booleans(),
    grouped=st.booleans(),
    chunk_size=st.sampled_from([None, 1, 5]),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_equals_brute_force(rows, classes, seed, sides, grouped, chunk_size, kind) -> None:
    rng = np.random.default_rng(seed)
    vectors, labels = lattice(rows, 6, seed), rng.integers(0, classes, rows)
    frame = pd.DataFrame({"label": labels})
    is_query = is_gallery = np.ones(rows, dtype=bool)
    groups = np.full(rows, -1)
    if sides:  # some images are on both sides, some on neither
        is_query, is_gallery = rng.random(rows) < 0.6, rng.random(rows) < 0.7
        is_query[0] = is_gallery[:3] = True
        frame = frame.assign(is_query=is_query, is_gallery=is_gallery)
    if grouped:
        groups = rng.integers(0, 3, rows)
        frame = frame.assign(group=groups)
    wanted, without = brute_force(vectors, labels, is_query, is_gallery, groups, (1, 2))
    if not wanted:
        with pytest.raises(InputError, match="image of its class to find"):
            evaluate(vectors, Table(frame), (1, 2), metrics=MORE, chunk_size=chunk_size)
        return
    names = {"coarse": labels // 2, "coarse_2": labels // 4}  # what is left out is left out at every level
    for column, codes in names.items():
        of_level, _ = brute_force(vectors, labels, is_query, is_gallery, groups, (1, 2), codes)
        wanted |= {f"{column}/{name}": value for name, value in of_level.items()}
    result = evaluate(
        vectors.astype(kind), Table(frame.assign(**names)), (1, 2), metrics=MORE, hierarchy=True, chunk_size=chunk_size
    )
    assert result.metrics == pytest.approx(wanted, rel=1e-12)
    assert (result.num_queries, result.num_gallery) == (is_query.sum(), is_gallery.sum())
    assert result.num_without_positive == without
    assert result.query_indices.tolist() == np.flatnonzero(is_query).tolist()


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(4, 30),
    seed=st.integers(0, 10**6),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_a_broken_embedding_is_named_if_it_takes_part(rows: int, seed: int, value: float, kind: type) -> None:
    rng = np.random.default_rng(seed)
    is_query, is_gallery = rng.random(rows) < 0.5, rng.random(rows) < 0.5
    is_query[0] = is_gallery[1] = True
    table = Table(pd.DataFrame({"label": np.zeros(rows), "is_query": is_query, "is_gallery": is_gallery}))
    vectors, broken = rng.standard_normal((rows, 3)).astype(kind), int(rng.integers(2, rows))
    vectors[broken, rng.integers(3)] = value
    if is_query[broken] or is_gallery[broken]:
        with pytest.raises(InputError, match=rf"embedding {broken} holds NaN or infinity; every embedding must be"):
            evaluate(vectors, table, [1])
    else:
        assert evaluate(vectors, table, [1]).metrics["mAP"] == 1


def test_agrees_with_pytorch_metric_learning() -> None:
    vectors, labels = clusters(400, 25)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count")
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    ours = evaluate(vectors, Table(pd.DataFrame({"label": labels}))).metrics
    assert [ours["recall@1"], ours["R-precision"], ours["mAP@R"]] == pytest.approx([theirs[name] for name in names])


def test_agrees_with_torchmetrics_and_scikit_learn() -> None:
    vectors, labels = clusters(60, 7)
    cosines = torch.from_numpy(vectors.astype(np.float64) @ vectors.T.astype(np.float64))
    scores = cosines + 1  # torchmetrics does not count positives with negative scores
    theirs = {
        "precision@5": partial(retrieval_precision, top_k=5),
        "positives_recall@5": partial(retrieval_recall, top_k=5),
        "R-precision": retrieval_r_precision,
        "MRR": retrieval_reciprocal_rank,
        "mAP": lambda scores, hits: torch.tensor(average_precision_score(hits, scores)),
    }
    ours = evaluate(vectors, Table(pd.DataFrame({"label": labels})), metrics=list(theirs)).per_query
    for name, function in theirs.items():
        others = [np.delete(np.arange(60), row) for row in range(60)]
        hits = [torch.from_numpy(labels[other] == labels[row]) for row, other in enumerate(others)]
        wanted = [float(function(scores[row, other], hits[row])) for row, other in enumerate(others)]
        np.testing.assert_allclose(ours[name], wanted, rtol=1e-6, err_msg=name)
