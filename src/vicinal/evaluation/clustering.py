"""Agreement of k-means clusters with the classes: NMI, AMI and pairwise F1."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.class_samples import sample_classes
from vicinal.data.table import Table
from vicinal.retrieval.linkage import average_linkage
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError


@dataclass(frozen=True, eq=False)  # arrays have no single truth value to compare by
class Clustering:
    """Clusters of embeddings, compared with the classes.

    Attributes:
        metrics: `NMI` -> normalized mutual information, divided by the mean of the two entropies; `AMI` -> the same,
            adjusted so that random clusters have 0; `F1` -> the pairwise F-score: pairs of images in one cluster are
            retrieved, pairs of one class are relevant. NMI rises with the number of clusters whatever they hold, so
            that it says little where classes are small; AMI does not.
        clusters: int64 [rows], the cluster of each embedding. Where embeddings are equal, some clusters may be empty.
        seed: of the first centers.
    """

    metrics: dict[str, float]
    clusters: Integers
    seed: int

    def __str__(self) -> str:
        lines = [f"k-means, seed {self.seed}: {len(np.unique(self.clusters)):,} clusters"]
        return "\n".join(lines + [f"{name:<3}   {100 * value:6.2f} %" for name, value in self.metrics.items()])


def cluster(
    embeddings: Array,
    table: Table,
    num_clusters: int | None = None,
    *,
    max_iterations: int = 20,
    seed: int = 0,
) -> Clustering:
    """Cluster unit vectors by k-means and compare the clusters with the classes.

    The k-means is that of faiss; the first centers are random embeddings.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, with labels. All rows are clustered, queries and gallery alike.
        num_clusters: None: as many as there are classes.
        max_iterations: the maximum number of iterations.
        seed: of the first centers.

    Raises:
        InputError: numbers of rows differ, no labels, NaN or infinity in an embedding, a number of clusters that is not
            from 1 to the number of embeddings, less than one iteration, or an invalid seed.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]], dtype=np.float32)
        >>> print(cluster(embeddings, table))
        k-means, seed 0: 2 clusters
        NMI   100.00 %
        AMI   100.00 %
        F1    100.00 %
    """
    check_rows(embeddings, table)
    num_clusters = len(table.classes) if num_clusters is None else num_clusters
    if not (is_integer(num_clusters) and 1 <= num_clusters <= len(table)):
        raise InputError(f"{num_clusters} clusters of {len(table)} embeddings are invalid; use 1 to {len(table)}")
    if not (is_integer(max_iterations) and max_iterations >= 1):
        raise InputError(f"max_iterations = {max_iterations} is invalid; use an integer from 1 up")
    if not (is_integer(seed) and 0 <= seed < 2**31):
        raise InputError(f"seed = {seed} is invalid; use an integer from 0 to 2**31 - 1")
    vectors = UnitVectors(embeddings, "embedding", device="cpu")
    unit = vectors.block(0, len(vectors)).numpy()
    clusters = _clusters(unit, int(num_clusters), int(max_iterations), int(seed))
    return Clustering(cluster_metrics(table.labels, clusters), clusters, int(seed))


def cluster_metrics(labels: npt.ArrayLike, clusters: npt.ArrayLike) -> dict[str, float]:
    """NMI, AMI and pairwise F1 of clusters that were found by any method.

    Args:
        labels: [n], the class of each image: integers, text or other names.
        clusters: [n], the cluster of each image.

    Raises:
        InputError: the numbers of labels and clusters differ, there are none, or one is missing (None, NaN).

    Example:
        >>> {name: round(value, 4) for name, value in cluster_metrics([0, 0, 1, 1, 1], [0, 0, 0, 1, 1]).items()}
        {'NMI': 0.4325, 'AMI': 0.2513, 'F1': 0.5}
    """
    from sklearn.metrics import normalized_mutual_info_score  # takes a second to import

    class_codes, cluster_codes = _class_and_cluster_codes(labels, clusters)
    sizes = _sizes(class_codes, cluster_codes)
    return {
        "NMI": float(normalized_mutual_info_score(class_codes, cluster_codes)),
        "AMI": adjusted_mutual_information(*sizes),
        "F1": _pairwise_f1(*sizes),
    }


def _class_and_cluster_codes(labels: npt.ArrayLike, clusters: npt.ArrayLike) -> tuple[Integers, Integers]:
    names, numbers = np.asarray(labels), np.asarray(clusters)
    if names.ndim != 1 or names.shape != numbers.shape or not len(names):
        shapes = f"{list(names.shape)} and {list(numbers.shape)}"
        raise InputError(f"labels and clusters have the shapes {shapes}; there must be one of each per image: [n]")
    return _codes(names, "label"), _codes(numbers, "cluster")


def _sizes(class_codes: Integers, cluster_codes: Integers) -> tuple[Integers, Integers, Integers]:
    """The sizes of the classes, of the clusters, and of their nonempty intersections."""
    pairs = class_codes * (cluster_codes.max() + 1) + cluster_codes
    overlaps = np.unique(pairs, return_counts=True)[1].astype(np.int64)
    return np.bincount(class_codes), np.bincount(cluster_codes), overlaps


def cluster_agreement(labels: npt.ArrayLike, clusters: npt.ArrayLike) -> dict[str, float]:
    """ARI and pairwise F1 of clusters, which count pairs of images.

    ARI is the adjusted Rand index (Hubert & Arabie, "Comparing partitions", J. Classification 2, 1985): 1 if clusters
    and classes are the same, around 0 if the clusters are random.

    Args:
        labels: [n], the class of each image: integers, text or other names.
        clusters: [n], the cluster of each image.

    Raises:
        InputError: as :func:`cluster_metrics`.

    Example:
        >>> {name: round(value, 4) for name, value in cluster_agreement([0, 0, 1, 1, 1], [0, 0, 0, 1, 1]).items()}
        {'ARI': 0.1667, 'F1': 0.5}
    """
    sizes = _sizes(*_class_and_cluster_codes(labels, clusters))
    of_class, of_cluster, of_both = map(_num_pairs, sizes)
    ari, total = 1.0, _num_pairs(sizes[0].sum(keepdims=True))
    if not of_class == of_cluster == of_both and total:
        expected = of_class * of_cluster / total
        ari = (of_both - expected) / ((of_class + of_cluster) / 2 - expected)
    return {"ARI": ari, "F1": _pairwise_f1(*sizes)}


def _num_pairs(sizes: Integers) -> int:
    return int((sizes * (sizes - 1) // 2).sum())


def cluster_threshold(embeddings: Array, table: Table, max_images: int = 5000, seed: int = 0) -> float | None:
    """The least mean similarity at which merging clusters gives the highest pairwise F1 with the classes.

    The best of all cuts of the tree of :func:`~vicinal.retrieval.average_linkage`; of equally good cuts, the one with
    the most clusters. It is halfway between two merges.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, with labels.
        max_images: of more images, whole classes are drawn at random.
        seed: of this random choice.

    Returns:
        A cosine similarity; None where no class has two images.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["Ada", "Ada", "Bo"]}))
        >>> round(cluster_threshold(np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), table), 2)
        0.55
    """
    check_rows(embeddings, table)
    rows = sample_classes(np.arange(len(table)), table.labels, max_images, seed)
    labels = table.labels[rows].tolist()
    merges = average_linkage(UnitVectors(embeddings, "embedding").take(rows).cpu().numpy())
    members = [Counter([label]) for label in labels]  # of each cluster, the number of images of each class
    num_class_pairs = sum(count * (count - 1) // 2 for count in Counter(labels).values())
    num_pairs, num_right, best, threshold = 0, 0, 0.0, None
    for number, (first, second, distance, _) in enumerate(merges.tolist()):
        small, large = sorted((members[int(first)], members[int(second)]), key=len)
        num_pairs += small.total() * large.total()
        num_right += sum(count * large[label] for label, count in small.items())
        members.append(large + small)
        following = float(merges[number + 1, 2]) if number + 1 < len(merges) else 2.0
        score = 2 * num_right / (num_pairs + num_class_pairs)
        if following > distance and score > best:
            best, threshold = score, 1 - (distance + following) / 2
    return threshold


def _codes(names: npt.NDArray[Any], what: str) -> Integers:
    """Number names of any kind: 0, 1, ..."""
    codes = pd.factorize(names, sort=True)[0].astype(np.int64)
    if codes.min() < 0:
        row = int(codes.argmin())
        raise InputError(f"{what} {row} is {names[row]}; every image needs one")
    return codes


def _pairwise_f1(classes: Integers, clusters: Integers, overlaps: Integers) -> float:
    """2 x pairs of one class and one cluster / (pairs of one class + pairs of one cluster); 1 where there are none."""
    num_pairs = [_num_pairs(sizes) for sizes in (classes, clusters, overlaps)]
    total = num_pairs[0] + num_pairs[1]
    return 2 * num_pairs[2] / total if total else 1.0


def _clusters(unit: Floats, num_clusters: int, max_iterations: int, seed: int) -> Integers:
    import faiss as faiss_with_stubs

    faiss: Any = faiss_with_stubs  # its type stubs lack the Python-side arguments of most classes
    means = faiss.Kmeans(
        unit.shape[1],
        num_clusters,
        niter=max_iterations,
        seed=seed,
        min_points_per_centroid=1,  # classes may be small
        max_points_per_centroid=len(unit),  # all embeddings take part, however many there are
    )
    means.train(unit)
    return np.asarray(means.index.search(unit, 1)[1][:, 0], dtype=np.int64)


def adjusted_mutual_information(classes: Integers, clusters: Integers, overlaps: Integers) -> float:
    """(MI - E) / (mean of both entropies - E), where E is the MI expected by chance of clusters with the same sizes.

    Vinh, Epps & Bailey, "Information Theoretic Measures for Clusterings Comparison", JMLR 2010, Eq. (24a). The result
    equals scikit-learn's `adjusted_mutual_info_score` except for its last digits (with the classes of SOP its E is off
    by 3e-9, by 1e-15 here). In E, all pairs of a class and a cluster of the same two sizes have the same term. Computed
    once per pair of sizes, the sum takes 0.03 s for the 11,316 classes of SOP, where term by term it takes 23 s. The
    arguments are the sizes of the classes, of the clusters, and of their nonempty intersections.
    """
    if len(classes) == 1 or len(clusters) == 1:
        return float(len(classes) == len(clusters))
    mean_entropy = (_entropy(classes) + _entropy(clusters)) / 2
    information = 2 * mean_entropy - _entropy(overlaps)
    if mean_entropy - information <= 1e-12 * mean_entropy:  # equal only if classes and clusters are the same
        return 1.0
    expected = _expected_information(classes, clusters)
    return float((information - expected) / (mean_entropy - expected))


def _entropy(counts: Integers) -> float:
    return float(np.log(counts.sum()) - (counts * np.log(counts)).sum() / counts.sum())


def _expected_information(classes: Integers, clusters: Integers) -> float:
    num_images = int(classes.sum())
    cluster_sizes, cluster_counts = np.unique(clusters, return_counts=True)
    return sum(
        int(count) * float(_terms(int(size), cluster_sizes, num_images) @ cluster_counts)
        for size, count in zip(*np.unique(classes, return_counts=True), strict=True)
    )


def _terms(class_size: int, cluster_sizes: Integers, num_images: int) -> Doubles:
    """The expected contribution of a class and a cluster of each size to the mutual information, [cluster sizes]."""
    overlap = np.arange(min(class_size, int(cluster_sizes.max())) + 1)[:, None]
    # The term of an empty overlap is 0.
    information = overlap / num_images * np.log(num_images * np.maximum(overlap, 1) / (class_size * cluster_sizes))
    probabilities = _overlap_probabilities(overlap, class_size, cluster_sizes, num_images)
    terms: Doubles = (probabilities * information).sum(axis=0)
    return terms


def _overlap_probabilities(overlap: Integers, class_size: int, cluster_sizes: Integers, num_images: int) -> Doubles:
    """The hypergeometric probability of each overlap, [overlaps, cluster sizes].

    Each is computed from the ratio to the one before, since the factorials of many images lose too many digits.
    """
    low = np.maximum(0, class_size + cluster_sizes - num_images)
    high = np.minimum(class_size, cluster_sizes)
    before = overlap[:-1]
    numerators = (class_size - before) * (cluster_sizes - before)
    denominators = (before + 1) * (num_images - class_size - cluster_sizes + before + 1)
    ratios = np.where((before >= low) & (before < high), numerators / np.maximum(denominators, 1), 1.0)
    logs = np.vstack([np.zeros(len(cluster_sizes)), np.cumsum(np.log(ratios), axis=0)])
    logs = np.where((overlap >= low) & (overlap <= high), logs, -np.inf)
    probabilities: Doubles = np.exp(logs - logs.max(axis=0))
    return probabilities / probabilities.sum(axis=0)
