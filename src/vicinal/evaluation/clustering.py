"""How well k-means finds the classes again: NMI, AMI and pairwise F1 of clusters and labels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.arguments import is_whole
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.adjusted_information import adjusted_mutual_information
from vicinal.retrieval.scores import Array, UnitVectors

faiss: Any = faiss_with_stubs  # its type stubs lack the Python-side arguments of most classes

FAISS, SCIKIT_LEARN = "faiss", "scikit-learn"

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)  # arrays have no one truth to compare by
class Clustering:
    """Clusters of embeddings, compared with the classes.

    Attributes:
        metrics: `NMI` -> normalised mutual information, divided by the mean of the two entropies; `AMI` -> the same,
            adjusted so that clusters drawn by chance have 0; `F1` -> of pairs of images: those of one cluster are
            found, those of one class are to be found. NMI rises with the number of clusters whatever they hold, so that
            it tells little where classes are small; AMI does not.
        clusters: int64 [rows], the cluster of each embedding. Where embeddings are equal some may stay empty.
        seed: of the first centers.
        method: `faiss` or `scikit-learn`.
    """

    metrics: dict[str, float]
    clusters: Integers
    seed: int
    method: str

    def __str__(self) -> str:
        lines = [f"k-means of {self.method}, seed {self.seed}: {len(np.unique(self.clusters)):,} clusters"]
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
        InputError: other numbers of rows, no labels, NaN or infinity in an embedding, another method, a number of
            clusters that is not from 1 to the number of embeddings, less than one iteration, or an impossible seed.

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
    if not (is_whole(count) and 1 <= count <= len(table)):
        raise InputError(f"{count} clusters of {len(table)} embeddings are impossible; use 1 to {len(table)}")
    if not (is_whole(iterations) and iterations >= 1):
        raise InputError(f"iterations = {iterations} is impossible; use iterations >= 1")
    if not (is_whole(seed) and 0 <= seed < 2**31):
        raise InputError(f"seed is {seed}; it must be a whole number from 0 to 2**31 - 1")
    vectors = UnitVectors(embeddings, "embedding", device="cpu")
    unit = vectors.block(0, len(vectors)).numpy()
    found = (_by_faiss if method == FAISS else _by_scikit_learn)(unit, int(count), int(iterations), int(seed))
    return Clustering(cluster_metrics(table.labels, found), found, int(seed), method)


def cluster_metrics(labels: npt.ArrayLike, clusters: npt.ArrayLike) -> dict[str, float]:
    """NMI, AMI and pairwise F1 of clusters found by any means.

    Args:
        labels: [n], the class of each image: integers, text or other names.
        clusters: [n], its cluster.

    Raises:
        InputError: other numbers of labels and clusters, none at all, or a missing one (None, NaN).

    Example:
        >>> {name: round(value, 4) for name, value in cluster_metrics([0, 0, 1, 1, 1], [0, 0, 0, 1, 1]).items()}
        {'NMI': 0.4325, 'AMI': 0.2513, 'F1': 0.5}
    """
    from sklearn.metrics import normalized_mutual_info_score  # takes a second to import

    names, numbers = np.asarray(labels), np.asarray(clusters)
    if names.ndim != 1 or names.shape != numbers.shape or not len(names):
        shapes = f"{list(names.shape)} and {list(numbers.shape)}"
        raise InputError(f"labels and clusters have the shapes {shapes}; there must be one of each an image: [n]")
    classes, found = _codes(names, "label"), _codes(numbers, "cluster")
    sizes = _sizes(classes, found)
    return {
        "NMI": float(normalized_mutual_info_score(classes, found)),
        "AMI": adjusted_mutual_information(*sizes),
        "F1": _pairwise_f1(*sizes),
    }


def _codes(names: npt.NDArray[Any], what: str) -> Integers:
    """Numbers 0, 1, ... in the place of names of any kind."""
    codes = pd.factorize(names, sort=True)[0].astype(np.int64)
    if codes.min() < 0:
        row = int(codes.argmin())
        raise InputError(f"{what} {row} is {names[row]}; every image needs one")
    return codes


def _sizes(classes: Integers, clusters: Integers) -> tuple[Integers, Integers, Integers]:
    """How many images each class has, each cluster, and each class and cluster have in common."""
    both = np.unique(classes * (clusters.max() + 1) + clusters, return_counts=True)[1]
    return np.bincount(classes), np.bincount(clusters), both.astype(np.int64)


def _pairwise_f1(classes: Integers, clusters: Integers, both: Integers) -> float:
    """F1 = 2 x both / (pairs of one class + pairs of one cluster); 1 where there are no such pairs at all."""
    of_classes, of_clusters, of_both = (int((counts * (counts - 1) // 2).sum()) for counts in (classes, clusters, both))
    return 2 * of_both / (of_classes + of_clusters) if of_classes + of_clusters else 1.0


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
    from sklearn.exceptions import ConvergenceWarning

    means = KMeans(clusters, n_init=1, max_iter=iterations, random_state=seed)
    with warnings.catch_warnings():  # of fewer distinct embeddings than clusters, as after a collapse
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(means.fit_predict(unit), dtype=np.int64)
