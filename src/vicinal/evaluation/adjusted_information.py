"""Mutual information of classes and clusters, less what clusters drawn by chance have (AMI)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def adjusted_mutual_information(classes: Integers, clusters: Integers, both: Integers) -> float:
    """(MI - E) / (mean of both entropies - E), where E is the MI expected of clusters of the same sizes by chance.

    Vinh, Epps & Bailey, "Information Theoretic Measures for Clusterings Comparison", JMLR 2010, Eq. (24a); the same as
    scikit-learn's `adjusted_mutual_info_score`, but for its last digits (with SOP its E is off by 3e-9, by 1e-15 here).
    In E all pairs of a class and a cluster of the same sizes have equal terms: added up once for each pair of sizes
    they take 0.03 s where each on its own, of the 11,316 classes of SOP, takes 23 s.

    Args:
        classes: int64 [classes], how many images each has.
        clusters: int64 [clusters], how many images each has.
        both: int64 [pairs], how many images each class and cluster have in common, where they have some.

    Returns:
        1 if they are the same, around 0 if chance alone made them.

    Example:
        >>> adjusted_mutual_information(np.array([2, 2]), np.array([2, 2]), np.array([2, 2]))
        1.0
    """
    if len(classes) == 1 or len(clusters) == 1:
        return float(len(classes) == len(clusters))
    most = (_entropy(classes) + _entropy(clusters)) / 2
    found = 2 * most - _entropy(both)
    if most - found <= 1e-12 * most:  # only of the same images: else less than the smaller entropy is found
        return 1.0
    expected = _expected(classes, clusters)
    return float((found - expected) / (most - expected))


def _entropy(counts: Integers) -> float:
    return float(np.log(counts.sum()) - (counts * np.log(counts)).sum() / counts.sum())


def _expected(classes: Integers, clusters: Integers) -> float:
    images = int(classes.sum())
    widths, numbers = np.unique(clusters, return_counts=True)
    return sum(
        int(times) * float(_terms(int(size), widths, images) @ numbers)
        for size, times in zip(*np.unique(classes, return_counts=True), strict=True)
    )


def _terms(size: int, widths: Integers, images: int) -> Floats:
    """What a class of this size and a cluster of each width are expected to add to the mutual information."""
    common = np.arange(min(size, int(widths.max())) + 1)[:, None]
    information = common / images * np.log(images * np.maximum(common, 1) / (size * widths))  # 0 of nothing in common
    terms: Floats = (_chances(common, size, widths, images) * information).sum(axis=0)
    return terms


def _chances(common: Integers, size: int, widths: Integers, images: int) -> Floats:
    """The hypergeometric chances of so many images in common, [common, widths].

    By the ratio of each to the one before: factorials of all images would take too many digits.
    """
    least, most = np.maximum(0, size + widths - images), np.minimum(size, widths)
    before = common[:-1]
    up, down = (size - before) * (widths - before), (before + 1) * (images - size - widths + before + 1)
    ratios = np.where((before >= least) & (before < most), up / np.maximum(down, 1), 1.0)
    logs = np.vstack([np.zeros(len(widths)), np.cumsum(np.log(ratios), axis=0)])
    logs = np.where((common >= least) & (common <= most), logs, -np.inf)
    chances: Floats = np.exp(logs - logs.max(axis=0))
    return chances / chances.sum(axis=0)
