import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.evaluation import cluster, cluster_agreement, cluster_metrics, cluster_threshold


def blobs(rows: int = 120, classes: int = 6, noise: float = 0.1) -> tuple[np.ndarray, Table]:
    labels = np.arange(rows) % classes
    rng = np.random.default_rng(0)
    return np.eye(8)[labels % 8] + noise * rng.standard_normal((rows, 8)), Table(pd.DataFrame({"label": labels}))


@pytest.mark.filterwarnings("error")
def test_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    labels, clusters = rng.integers(0, 9, 500), rng.integers(0, 7, 500)
    clusters[:300] = labels[:300] % 7
    found = cluster_metrics(labels, clusters)
    assert found["NMI"] == normalized_mutual_info_score(labels, clusters)
    for names in ([f"class {label}" for label in labels], labels + 0.5):
        assert cluster_metrics(names, -clusters) == pytest.approx(found)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8)), min_size=1, max_size=40))
def test_ami_is_that_of_scikit_learn(given: list[tuple[int, int]]) -> None:
    labels, clusters = np.array(given).T
    is_perfect = len(set(given)) == len(set(labels)) == len(set(clusters))  # old versions say 0 for single images
    wanted = 1.0 if is_perfect else adjusted_mutual_info_score(labels, clusters)
    assert cluster_metrics(labels, clusters)["AMI"] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(("images", "classes", "clusters"), [(900, 450, 300), (900, 3, 40)])
def test_ami_of_many_small_and_of_few_large_classes(images: int, classes: int, clusters: int) -> None:
    rng = np.random.default_rng(0)
    labels, found = rng.integers(0, classes, images), rng.integers(0, clusters, images)
    found[: images // 3] = labels[: images // 3] % clusters
    wanted = adjusted_mutual_info_score(labels, found)
    assert 0.01 < cluster_metrics(labels, found)["AMI"] == pytest.approx(wanted, abs=1e-8)


def test_seed_and_number_of_clusters() -> None:
    vectors, table = blobs(noise=0.6)
    first, second = (cluster(vectors, table, seed=seed).clusters for seed in (0, 1))
    assert (first != second).any()
    assert cluster(vectors, table, 20).clusters.max() == 19
    assert set(cluster(vectors, table, 1).clusters) == {0}


def test_a_collapse_makes_no_noise_and_leaves_clusters_empty(recwarn: pytest.WarningsRecorder) -> None:
    found = cluster(np.ones((12, 4)), blobs(12, 3)[1])
    assert not recwarn.list
    with_gaps = dataclasses.replace(found, clusters=np.array([0, 4, 4]))
    assert "seed 0: 2 clusters" in str(with_gaps)
    assert found.metrics["AMI"] == pytest.approx(0, abs=1e-12)


def test_bad_input() -> None:
    vectors, table = blobs(12, 3)
    for count in (0, 13):
        refused_call(f"{count} clusters of 12 embeddings are invalid; use 1 to 12", cluster, vectors, table, count)
    for seed in (-1, 2**31):
        refused_call(
            rf"seed = {seed} is invalid; use an integer from 0 to 2\*\*31 - 1", cluster, vectors, table, seed=seed
        )
    for metrics in (cluster_metrics, cluster_agreement):
        refused_call(r"labels and clusters have the shapes \[2\] and \[1\]; there must be one", metrics, [0, 1], [0])
    for missing in (None, float("nan")):
        refused_call(f"label 1 is {missing}; every image needs one", cluster_metrics, [1, missing], [0, 1])
        refused_call(f"cluster 0 is {missing}; every image needs one", cluster_metrics, [1, 2], [missing, 1])


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_of_clusters_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 12, 50)
    vectors = rng.normal(size=(12, 6))[labels] + 0.6 * rng.normal(size=(50, 6))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    heights = np.sort(linkage(unit, "average", "cosine")[:, 2])
    scores = {}
    for threshold in (heights + np.append(heights[1:], 2.0)) / 2:
        model = AgglomerativeClustering(None, metric="cosine", linkage="average", distance_threshold=threshold)
        (_, found), (missed, right) = pair_confusion_matrix(labels, model.fit_predict(unit))
        scores[threshold] = 2 * right / (2 * right + found + missed)
    best = cluster_threshold(vectors, Table(pd.DataFrame({"label": labels})))
    assert best is not None
    nearest = min(scores, key=lambda threshold: abs(1 - threshold - best))
    assert scores[nearest] == max(scores.values())
    assert 1 - nearest == pytest.approx(best, abs=1e-6)


def test_classes_of_one_image_have_no_threshold() -> None:
    assert cluster_threshold(np.eye(3), Table(pd.DataFrame({"label": [0, 1, 2]}))) is None
