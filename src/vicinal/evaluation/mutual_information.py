"""Adjusted mutual information (AMI): mutual information of classes and clusters, adjusted for chance."""

from __future__ import annotations

import numpy as np

from vicinal.utils.arrays import Doubles, Integers


def adjusted_mutual_information(classes: Integers, clusters: Integers, overlaps: Integers) -> float:
    """(MI - E) / (mean of both entropies - E), where E is the MI expected by chance of clusters with the same sizes.

    Vinh, Epps & Bailey, "Information Theoretic Measures for Clusterings Comparison", JMLR 2010, Eq. (24a). The result
    equals scikit-learn's `adjusted_mutual_info_score` except for its last digits (with the classes of SOP its E is off
    by 3e-9, by 1e-15 here). In E, all pairs of a class and a cluster of the same two sizes have the same term. Computed
    once per pair of sizes, the sum takes 0.03 s for the 11,316 classes of SOP, where term by term it takes 23 s.

    Args:
        classes: int64 [classes], the number of images in each class.
        clusters: int64 [clusters], the number of images in each cluster.
        overlaps: int64 [pairs], the number of images that a class and a cluster share, for every pair that shares some.

    Returns:
        1 if classes and clusters are the same, around 0 if the clusters are random.

    Example:
        >>> adjusted_mutual_information(np.array([2, 2]), np.array([2, 2]), np.array([2, 2]))
        1.0
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
