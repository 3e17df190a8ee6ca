"""Metrics of identification: compared with loops over the definitions in float64, and with scikit-learn."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import pair_confusion_matrix

from tests.evaluation.cases import pooled
from vicinal.data import Table
from vicinal.evaluation import cluster_agreement, enrolled_rows, evaluate_identification
from vicinal.retrieval.calibration import example_calibration
from vicinal.utils.errors import InputError


def photos(seed: int, **columns: object) -> tuple[np.ndarray, Table]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(16), rng.integers(1, 8, 16)))
    vectors = rng.normal(size=(16, 6))[labels] + 0.6 * rng.normal(size=(len(labels), 6))
    frame = pd.DataFrame({"label": labels})
    if "sides" in columns:
        frame["is_gallery"] = (labels < 9) & (rng.random(len(labels)) < 0.6)
        frame["is_query"] = rng.random(len(labels)) < 0.9
    if "group" in columns:
        frame["group"] = rng.integers(-1, 2, len(labels))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), Table(frame)


def pairwise_f1(labels: np.ndarray, clusters: np.ndarray) -> float:
    (_, found), (missed, right) = pair_confusion_matrix(labels, clusters)
    return 2 * right / (2 * right + found + missed) if right + found + missed else 1.0


@pytest.mark.parametrize("pooling", ["best", "mean", "centroid"])
@pytest.mark.parametrize("columns", [{}, {"sides": True}, {"group": True}])
@pytest.mark.parametrize("score", ["similarity", "margin"])
def test_metrics_equal_loops_over_photos(score: str, columns: dict[str, bool], pooling: str) -> None:
    vectors, table = photos(2, **columns)
    frame, labels = table.frame, table.frame["label"].to_numpy()
    bound = 0.75 if score == "similarity" else 0.25
    calibration = replace(example_calibration(), score=score, pooling=pooling, threshold=bound, cluster_threshold=0.5)
    found = evaluate_identification(vectors, table, calibration, seed=4)
    if "sides" in columns:
        gallery, queries = np.flatnonzero(frame.is_gallery), np.flatnonzero(frame.is_query & ~frame.is_gallery)
    else:
        gallery = enrolled_rows(table, seed=4)
        queries = np.setdiff1d(np.arange(len(table)), gallery)
    expected = {name: np.full(len(table), np.nan) for name in found.per_query}
    groups, new = {}, []
    for row in queries:
        scores = {}
        for name in np.unique(labels[gallery]):
            rows = [each for each in gallery if labels[each] == name]
            if "group" in columns and name == labels[row]:
                rows = [each for each in rows if not frame.group[each] == frame.group[row] >= 0]
            if rows:
                scores[name] = pooled(vectors[rows], vectors[row], pooling)
        nearest = max(scores, key=scores.get)
        first, second = sorted(scores.values(), reverse=True)[:2]
        is_new = (first if score == "similarity" else first - second) < bound
        if labels[row] in scores:
            expected["closed_set_accuracy"][row] = nearest == labels[row]
            expected["identification_rate"][row] = nearest == labels[row] and not is_new
            expected["known_as_new"][row] = is_new
        if labels[row] not in labels[gallery]:
            expected["unknown_rate"][row] = is_new
        groups[row] = nearest
        new += [row] * is_new
    for name, values in expected.items():
        np.testing.assert_array_equal(found.per_query[name], values, name)
    model = AgglomerativeClustering(None, metric="cosine", linkage="average", distance_threshold=0.5)
    groups |= dict(zip(new, 1000 + model.fit_predict(vectors[new]), strict=True))
    unknown = np.array([row for row in queries if labels[row] not in labels[gallery]])
    clusters = np.array([groups[row] for row in unknown])
    values = {
        "new_ARI": adjusted_rand_score(labels[unknown], clusters),
        "new_F1": pairwise_f1(labels[unknown], clusters),
    }
    assert found.set_metrics == pytest.approx(values)
    for name, measure in (("new_ARI", adjusted_rand_score), ("new_F1", pairwise_f1)):
        classes = np.unique(labels[unknown])
        left = [
            measure(labels[unknown][kept], clusters[kept]) for each in classes for kept in [labels[unknown] != each]
        ]
        half = t.ppf(0.975, len(left) - 1) * np.sqrt(np.var(left) * (len(left) - 1))
        low, high = found.set_intervals[name]
        assert low == pytest.approx(max(values[name] - half, -0.5 if name == "new_ARI" else 0))
        assert high == pytest.approx(min(values[name] + half, 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=30))
def test_agreement_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, clusters = map(list, zip(*pairs, strict=True))
    found = cluster_agreement(labels, clusters)
    assert found["ARI"] == pytest.approx(adjusted_rand_score(labels, clusters))
    assert found["F1"] == pytest.approx(pairwise_f1(np.array(labels), np.array(clusters)))


def test_half_of_the_photos_of_some_identities_are_enrolled() -> None:
    _, table = photos(0)
    rows, labels = enrolled_rows(table, 0.25, seed=1), table.labels
    known, counts = np.unique(labels[rows], return_counts=True)
    assert len(known) == 4
    assert counts.tolist() == np.maximum(table.class_counts[known] // 2, 1).tolist()
    assert rows.tolist() == enrolled_rows(table, 0.25, seed=1).tolist() != enrolled_rows(table, 0.25, seed=2).tolist()


def test_what_cannot_be_evaluated_is_refused() -> None:
    vectors, table = photos(0)
    calibration = example_calibration()
    with pytest.raises(InputError, match="known_fraction = 1 is invalid"):
        evaluate_identification(vectors, table, calibration, known_fraction=1)
    with pytest.raises(InputError, match="two identities or more"):
        evaluate_identification(vectors[:2], Table(pd.DataFrame({"label": [0, 0]})), calibration)
    with pytest.raises(InputError, match="0 photos of known and 1 of unknown identities are left"):
        evaluate_identification(np.eye(2), Table(pd.DataFrame({"label": [0, 1]})), calibration)
    with pytest.raises(InputError, match="confidence_level"):
        evaluate_identification(vectors, table, calibration, confidence_level=2)
    with pytest.raises(InputError, match="is_gallery"):
        evaluate_identification(vectors, Table(table.frame.assign(is_query=True)), calibration)
