"""Clusters of embeddings, and their map in two dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.data.class_samples import sample_classes
from vicinal.data.table import Table
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arguments import check_positive_integer
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError

MIN_SIZE = 5
MAX_DENSITY_IMAGES = 20_000  # of HDBSCAN, whose time grows with the square of their number
IMAGES_PER_CLUSTER = 50  # of k-means, where no number is given
MAX_LABEL_FRACTION = 0.5
MAX_MAP_IMAGES = 2000
MIN_IMAGES = 5  # of a map
PERPLEXITY = 30.0
PCA_COMPONENTS = 50  # before t-SNE, which is faster for it and changes little


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
            - `is_candidate`: whether it may be a class that is not in the table: no label is on more than half of its
              images, or there are no labels.
    """

    assignments: Integers
    summary: pd.DataFrame


def clusters(
    embeddings: Array, table: Table, num_clusters: int | None = None, min_size: int = MIN_SIZE, seed: int = 0
) -> Clusters:
    """Cluster embeddings by HDBSCAN or k-means of scikit-learn.

    Without a number of clusters, HDBSCAN finds the smallest dense regions, and leaves images between
    them without a cluster (Campello, Moulavi & Sander, "Density-Based Clustering Based on Hierarchical Density
    Estimates", PAKDD 2013). For more than 20,000 images HDBSCAN would take too long, so mini-batch k-means makes
    one cluster per 50 images.

    Args:
        embeddings: float [rows, dim]; they are normalized.
        table: one row per embedding.
        num_clusters: of k-means; None: see above.
        min_size: the least number of images of a cluster of HDBSCAN.
        seed: of k-means.

    Raises:
        InputError: numbers of rows differ, or a number is invalid.

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
        cluster_labels = _by_density(vectors, min_size)
    else:
        cluster_labels = _by_k_means(vectors, num_clusters or -(-len(table) // IMAGES_PER_CLUSTER), seed)
    return _build_clusters(vectors, table, cluster_labels)


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


def _build_clusters(vectors: Floats, table: Table, cluster_labels: Integers) -> Clusters:
    """Clusters in the order of their sizes, equal ones in that of their first rows."""
    rows = pd.Series(np.arange(len(cluster_labels)))[cluster_labels >= 0]
    parts = [part.to_numpy() for _, part in rows.groupby(cluster_labels[cluster_labels >= 0])]
    parts.sort(key=lambda part: (-len(part), part[0]))
    assignments = np.full(len(cluster_labels), -1)
    lines = []
    for number, part in enumerate(parts):
        assignments[part] = number
        similarities = _similarities_to_mean(vectors[part])
        label, fraction = _majority(table, part)
        is_candidate = not fraction > MAX_LABEL_FRACTION
        representative = int(part[similarities.argmax()])
        lines.append((number, len(part), representative, float(similarities.mean()), label, fraction, is_candidate))
    names = ["cluster", "num_images", "representative", "similarity", "label", "label_fraction", "is_candidate"]
    return Clusters(assignments, pd.DataFrame(lines, columns=names))


def _similarities_to_mean(vectors: Floats) -> Doubles:
    mean = vectors.mean(axis=0, dtype=np.float64)
    return vectors @ (mean / max(float(np.linalg.norm(mean)), 1e-12))


def _majority(table: Table, rows: Integers) -> tuple[str | int, float]:
    if not table.has("label"):
        return "", float("nan")
    counts = np.bincount(table.labels[rows], minlength=len(table.classes))
    return table.classes[int(counts.argmax())], float(counts.max() / len(rows))


def embedding_map(embeddings: Array, table: Table, max_images: int = MAX_MAP_IMAGES, seed: int = 0) -> pd.DataFrame:
    """Place the gallery images in the plane by t-SNE, so that similar images are near each other.

    Of more than `max_images`, whole classes are drawn at random, or images if there are no labels; of very large
    classes, a part of each.

    Reference: van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, perhaps with labels, queries and gallery.
        max_images: the number of images on the map.
        seed: of the sample and of t-SNE.

    Returns:
        One row per image: `row`, its row in the table, ascending; `x` and `y`, from 0 to 1 on a common scale. No rows
        if there are fewer than five images or all embeddings are equal.

    Raises:
        InputError: numbers of rows differ.

    Example:
        >>> embedding_map(np.eye(8), Table(pd.DataFrame({"label": list("aabbccdd")}))).shape
        (8, 3)
    """
    check_rows(embeddings, table)
    labels = table.labels if table.has("label") else np.zeros(len(table), dtype=np.int64)
    rows = sample_classes(query_gallery_rows(table)[1], labels, max_images, seed)
    unit = UnitVectors(embeddings, "embedding").take(rows).cpu().numpy()
    if len(rows) < MIN_IMAGES or (unit == unit[0]).all():
        return pd.DataFrame({"row": rows[:0], "x": np.empty(0), "y": np.empty(0)})
    x, y = _scaled(_tsne(unit, seed)).T
    return pd.DataFrame({"row": rows, "x": x, "y": y})


def _tsne(unit: Floats, seed: int) -> Doubles:
    from sklearn.decomposition import PCA  # takes a second to import
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(PERPLEXITY, (len(unit) - 1) / 3)
    with threadpool_limits(1):  # otherwise the map would depend on the number of threads
        if min(unit.shape) > PCA_COMPONENTS:
            unit = PCA(PCA_COMPONENTS, random_state=seed).fit_transform(unit)
        if unit.shape[1] < 2:
            unit = np.pad(unit, ((0, 0), (0, 1)))
        return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(unit).astype(np.float64)


def _scaled(points: Doubles) -> Doubles:
    """The points in the unit square, centred, with the longer side of their bounding box filled."""
    low, high = points.min(axis=0), points.max(axis=0)
    side = max(float((high - low).max()), 1e-12)
    return (points - (low + high) / 2) / side + 0.5
