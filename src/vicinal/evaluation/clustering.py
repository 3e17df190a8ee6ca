"""How well k-means finds the classes again: NMI, AMI and pairwise F1 of clusters and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.retrieval.scores import Array, UnitVectors

faiss: Any = faiss_with_stubs  # its type stubs lack the Python-side arguments of most classes

FAISS, SCIKIT_LEARN = "faiss", "scikit-learn"

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clustering:
    """Clusters of embeddings, compared with the classes.

    Attributes:
        metrics: `NMI` -> normalised mutual information, divided by the mean of the two entropies; `AMI` -> the same,
            adjusted so that clusters drawn by chance have 0; `F1` -> of pairs of images: those of one cluster are
            found, those of one class are to be found. NMI rises with the number of clusters whatever they hold, so that
            it tells little where classes are small; AMI does not.
        clusters: int64 [rows], the cluster of each embedding.
        seed: of the first centers.
        method: `faiss` or `scikit-learn`.
    """

    metrics: dict[str, float]
    clusters: Integers
    seed: int
    method: str

    def __str__(self) -> str:
        lines = [f"k-means of {self.method}, seed {self.seed}: {self.clusters.max() + 1:,} clusters"]
        return "\n".join(lines + [f"{name:<3}   {100 * value:6.2f} %" for name, value in self.metrics.items()])


def cluster(
    embeddings: Array,
    table: Table,
    clusters: int | None = None,
    *,
    method: str = FAISS,
    iterations: int = 20,
    seed: int = 0,
) -> Clustering:
    """Cluster unit vectors by k-means and compare the clusters with the classes.

    Args:
        embeddings: float [rows, dim].
        table: one row an embedding, with labels. All rows are clustered, queries and gallery alike.
        clusters: how many; by default as many as there are classes.
        method: `faiss` (first centers drawn from the embeddings; for many clusters the faster) or `scikit-learn`
            (k-means++ and Lloyd's algorithm).
        iterations: at most.
        seed: of the first centers.

    Raises:
        InputError: other numbers of rows, no labels, NaN or infinity in an embedding, another method, or a number of
            clusters that is not from 1 to the number of embeddings, or less than one iteration.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], dtype=np.float32)
        >>> print(cluster(embeddings, table, method="scikit-learn"))
        k-means of scikit-learn, seed 0: 2 clusters
        NMI   100.00 %
        AMI   100.00 %
        F1    100.00 %
    """
    if method not in (FAISS, SCIKIT_LEARN):
        raise InputError(f"there is no method {method!r} of clustering; use {FAISS} or {SCIKIT_LEARN}")
    if len(embeddings) != len(table):
        raise InputError(f"{len(embeddings)} embeddings, but table of {len(table)} rows; there must be one row each")
    count = len(table.classes) if clusters is None else clusters
    if not 1 <= count <= len(table):
        raise InputError(f"{count} clusters of {len(table)} embeddings are impossible; use 1 to {len(table)}")
    if iterations < 1:
        raise InputError(f"iterations = {iterations} is impossible; use iterations >= 1")
    vectors = UnitVectors(embeddings, "embedding", device="cpu")
    unit = vectors.block(0, len(vectors)).numpy()
    found = (_by_faiss if method == FAISS else _by_scikit_learn)(unit, count, iterations, seed)
    return Clustering(cluster_metrics(table.labels, found), found, seed, method)


def cluster_metrics(labels: npt.ArrayLike, clusters: npt.ArrayLike) -> dict[str, float]:
    """NMI, AMI and pairwise F1 of clusters found by any means.

    Args:
        labels: [n], the class of each image.
        clusters: [n], its cluster.

    Example:
        >>> {name: round(value, 4) for name, value in cluster_metrics([0, 0, 1, 1], [0, 0, 0, 1]).items()}
        {'NMI': 0.3437, 'AMI': 0.0, 'F1': 0.4}
    """
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score  # takes a second to import

    classes, found = np.asarray(labels), np.asarray(clusters)
    return {
        "NMI": float(normalized_mutual_info_score(classes, found)),
        "AMI": float(adjusted_mutual_info_score(classes, found)),
        "F1": _pairwise_f1(classes, found),
    }


def _pairwise_f1(labels: npt.NDArray[Any], clusters: npt.NDArray[Any]) -> float:
    """F1 = 2 x both / (pairs of one class + pairs of one cluster); 1 where there are no such pairs at all."""
    classes, columns = (np.unique(each, return_inverse=True)[1] for each in (labels, clusters))
    table = coo_array((np.ones(len(classes), dtype=np.int64), (classes, columns))).tocsr()
    both, of_classes, of_clusters = (_pairs(counts) for counts in (table.data, table.sum(axis=1), table.sum(axis=0)))
    return 2 * both / (of_classes + of_clusters) if of_classes + of_clusters else 1.0


def _pairs(counts: Integers) -> int:
    counts = np.asarray(counts, dtype=np.int64)
    return int((counts * (counts - 1) // 2).sum())


def _by_faiss(unit: npt.NDArray[np.float32], clusters: int, iterations: int, seed: int) -> Integers:
    means = faiss.Kmeans(
        unit.shape[1],
        clusters,
        niter=iterations,
        seed=seed,
        min_points_per_centroid=1,  # classes may be small; and all embeddings take part, however many
        max_points_per_centroid=len(unit),
    )
    means.train(unit)
    return np.asarray(means.index.search(unit, 1)[1][:, 0], dtype=np.int64)


def _by_scikit_learn(unit: npt.NDArray[np.float32], clusters: int, iterations: int, seed: int) -> Integers:
    from sklearn.cluster import KMeans  # takes a second to import

    means = KMeans(clusters, n_init=1, max_iter=iterations, random_state=seed)
    return np.asarray(means.fit_predict(unit), dtype=np.int64)
