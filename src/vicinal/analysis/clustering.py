"""Clusters of images that belong together, whatever their labels, with a representative of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arguments import check_positive_integer
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError

MIN_SIZE = 5
MAX_DENSITY_IMAGES = 20_000  # of HDBSCAN, whose time grows with the square of their number
IMAGES_PER_CLUSTER = 50  # of k-means, where no number is given
MAX_LABEL_FRACTION = 0.5


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of images.

    Attributes:
        assignments: int64 [rows], the cluster of each row of the table; -1 for none.
        summary: one row per cluster, the largest first:

            - `cluster`: its number, from 0.
            - `num_images`: how many images it has.
            - `representative`: the row of the image that is most similar to the mean of the cluster.
            - `similarity`: the mean cosine similarity of its images to that mean.
            - `label`: its most frequent label; an empty text without labels.
            - `label_fraction`: the fraction of its images that have this label; NaN without labels.
            - `is_candidate`: whether it may be a class that is not in the table: no label is that of more than half of
              its images, or there are no labels.
    """

    assignments: Integers
    summary: pd.DataFrame


def clusters(
    embeddings: Array, table: Table, num_clusters: int | None = None, min_size: int = MIN_SIZE, seed: int = 0
) -> Clusters:
    """Cluster embeddings by HDBSCAN or k-means of scikit-learn.

    Without a number of clusters, HDBSCAN finds dense regions, the smallest that there are, and leaves images between
    them without a cluster (Campello, Moulavi & Sander, "Density-Based Clustering Based on Hierarchical Density
    Estimates", PAKDD 2013). Of more than 20,000 images, which would take it too long, mini-batch k-means makes one
    cluster per 50 images.

    Args:
        embeddings: float [rows, dim]; they are normalized.
        table: one row per embedding.
        num_clusters: of k-means; None: see above.
        min_size: the least number of images of a cluster of HDBSCAN.
        seed: of k-means.

    Raises:
        InputError: other numbers of rows, or a number that is impossible.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> found = clusters(np.array([[9, 0], [9, 1], [0, 9], [1, 9]]), table, num_clusters=2)
        >>> found.summary[["num_images", "label", "label_fraction"]].to_numpy().tolist()
        [[2, 'cat', 1.0], [2, 'dog', 1.0]]
    """
    check_rows(embeddings, table)
    check_positive_integer(clusters, num_clusters=1 if num_clusters is None else num_clusters, min_size=min_size)
    if num_clusters is not None and num_clusters > len(table):
        raise InputError(f"num_clusters is {num_clusters}, but there are {len(table)} images; give at most as many")
    vectors = UnitVectors(embeddings, "embedding").block(0, len(table)).cpu().numpy()
    if num_clusters is None and len(table) <= MAX_DENSITY_IMAGES:
        found = _by_density(vectors, min_size)
    else:
        found = _by_k_means(vectors, num_clusters or -(-len(table) // IMAGES_PER_CLUSTER), seed)
    return _numbered(vectors, table, found)


def _by_density(vectors: Floats, min_size: int) -> Integers:
    from sklearn.cluster import HDBSCAN

    if len(vectors) < max(min_size, 2):
        return np.full(len(vectors), -1)
    model = HDBSCAN(min_cluster_size=max(min_size, 2), cluster_selection_method="leaf", copy=True)
    return np.asarray(model.fit_predict(vectors.astype(np.float64)), dtype=np.int64)


def _by_k_means(vectors: Floats, num_clusters: int, seed: int) -> Integers:
    from sklearn.cluster import MiniBatchKMeans

    model = MiniBatchKMeans(num_clusters, random_state=seed, n_init=3)
    return np.asarray(model.fit_predict(vectors), dtype=np.int64)


def _numbered(vectors: Floats, table: Table, found: Integers) -> Clusters:
    """Clusters in the order of their sizes, equal ones in that of their first rows."""
    rows = pd.Series(np.arange(len(found)))[found >= 0]
    parts = [part.to_numpy() for _, part in rows.groupby(found[found >= 0])]
    parts.sort(key=lambda part: (-len(part), part[0]))
    assignments = np.full(len(found), -1)
    lines = []
    for number, part in enumerate(parts):
        assignments[part] = number
        similarities = _to_mean(vectors[part])
        label, fraction = _majority(table, part)
        is_candidate = not fraction > MAX_LABEL_FRACTION
        representative = int(part[similarities.argmax()])
        lines.append((number, len(part), representative, float(similarities.mean()), label, fraction, is_candidate))
    names = ["cluster", "num_images", "representative", "similarity", "label", "label_fraction", "is_candidate"]
    return Clusters(assignments, pd.DataFrame(lines, columns=names))


def _to_mean(vectors: Floats) -> Doubles:
    mean = vectors.mean(axis=0, dtype=np.float64)
    return vectors @ (mean / max(float(np.linalg.norm(mean)), 1e-12))


def _majority(table: Table, rows: Integers) -> tuple[str | int, float]:
    if not table.has("label"):
        return "", float("nan")
    counts = np.bincount(table.labels[rows], minlength=len(table.classes))
    return table.classes[int(counts.argmax())], float(counts.max() / len(rows))
