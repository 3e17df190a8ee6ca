"""Identification of individuals, compared with loops in float64, and clusters compared with scikit-learn."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import AgglomerativeClustering

from tests.evaluation.cases import pooled
from tests.refusals import refused_call
from vicinal import Index, Table
from vicinal.evaluation import cluster_metrics
from vicinal.retrieval import cluster_photos, enrolled_photos, identify, linkage, match_images
from vicinal.retrieval.calibration import example_calibration


def photos(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """One to five photos of each individual, in no order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(number), rng.integers(1, 6, number)))
    vectors = rng.normal(size=(number, 8))[labels] + 0.4 * rng.normal(size=(len(labels), 8))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def index_of(vectors: np.ndarray, labels: np.ndarray) -> Index:
    names = np.array([f"cat {label}" for label in labels])
    return Index.build(vectors, Table(pd.DataFrame({"label": names})))


@pytest.mark.parametrize("score", ["similarity", "margin"])
@pytest.mark.parametrize("pooling", ["best", "mean", "centroid"])
def test_photos_are_compared_with_all_photos_of_every_identity(pooling: str, score: str) -> None:
    vectors, labels = photos(12)
    is_enrolled = labels < 7
    index = index_of(vectors[is_enrolled], labels[is_enrolled])
    bound = 0.8 if score == "similarity" else 0.3
    index.calibration = replace(example_calibration(), pooling=pooling, score=score, threshold=bound)
    found = identify(index, vectors, Table(pd.DataFrame(index=range(len(vectors)))))
    assert found["is_new"].any()
    assert not found["is_new"].all()
    for query, row in zip(vectors, found.itertuples(), strict=True):
        scores = {name: pooled(vectors[labels == name], query, pooling) for name in range(7)}
        first, second = sorted(scores.values(), reverse=True)[:2]
        assert row.nearest == f"cat {max(scores, key=scores.get)}"
        assert row.score == pytest.approx(first if score == "similarity" else first - second, abs=1e-6)
        assert row.is_new == (row.score < bound)
        assert (row.identity == row.nearest) != row.is_new
    unknown = vectors[found["is_new"]]
    clusters = pd.factorize(found["identity"][found["is_new"]])[0]
    assert cluster_metrics(cluster_photos(unknown.astype(np.float32), 0.6), clusters)["F1"] == 1


@pytest.mark.parametrize("threshold", [-1.0, 0.2, 0.5, 0.8, 1.0])
def test_clusters_are_those_of_scikit_learn_and_ordered_by_size(threshold: float) -> None:
    vectors, _ = photos(15, seed=3)
    found = cluster_photos(vectors.astype(np.float32), threshold)
    model = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=1 - threshold + 1e-6
    )
    expected = model.fit_predict(1 - vectors @ vectors.T)
    assert len(np.unique(expected)) == found.max() + 1
    assert len(pd.DataFrame({"found": found, "expected": expected}).drop_duplicates()) == found.max() + 1
    sizes = np.bincount(found)
    assert (np.diff(sizes) <= 0).all()
    assert found.dtype == np.int64


def test_few_photos_names_of_new_identities_and_photos_without_one() -> None:
    index = Index.build(np.eye(3), Table(pd.DataFrame({"label": [4, 4, 9], "is_query": [True] * 3})))
    one = Table(pd.DataFrame(index=range(1)))
    assert identify(index, np.eye(3)[:1], one, min_score=0.5)["identity"].tolist() == [4]
    assert len(identify(index, np.empty((0, 3)), Table(pd.DataFrame(index=[])), min_score=0.5)) == 0
    index.add(-np.eye(3), Table(pd.DataFrame({"path": ["a", "b", "c"]})))  # in the index, but no identities
    assert identify(index, -np.eye(3)[:1], one, min_score=0.5)["identity"].tolist() == [10]
    vectors, table = enrolled_photos(index)
    assert vectors.shape == (3, 3)
    assert (table.classes, table.has("path"), table.has("is_query")) == ([4, 9], False, False)


def test_what_cannot_be_identified_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = photos(5)
    index, table = index_of(vectors, labels), Table(pd.DataFrame(index=range(len(vectors))))
    plain = Index.build(vectors, Table(pd.DataFrame({"price": labels})))
    for given, minimum, message in (
        (index, None, "the index has no calibration"),
        (index, 2.0, "min_score = 2.0 is invalid"),
        (plain, 0.5, "the index has no identities"),
    ):
        refused_call(message, identify, given, vectors, table, min_score=minimum)
    refused_call("dimensions", identify, index, vectors[:, :3], table, min_score=0.5)
    index.calibration = replace(example_calibration(), cluster_threshold=None)
    refused_call("has no cluster_threshold", identify, index, vectors, table)
    monkeypatch.setattr(linkage, "MAX_CLUSTERED", 3)
    refused_call("photos are too many to be clustered; give at most 3", identify, index, -vectors, table, min_score=1.0)


def test_a_search_does_not_decide_by_a_calibration_of_identities() -> None:
    vectors, labels = photos(5)
    index, table = index_of(vectors, labels), Table(pd.DataFrame(index=range(len(vectors))))
    index.calibration = replace(example_calibration(), pooling="centroid")
    assert index.match_calibration is None
    refused_call("about identities; use vicinal identify", match_images, index, vectors, table, k=1)
    assert match_images(index, vectors, table, k=1, min_score=0.5)[0].decision.is_match
