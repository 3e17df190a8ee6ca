"""Open-set label noise: whole classes are dissolved, and their images get the labels of other classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vicinal.data.batches.balanced_batches import rows_by_class
from vicinal.data.checks import check_embeddings
from vicinal.data.noise.noise_rows import check_noise_fraction, noise_generator, relabel, training_rows
from vicinal.data.settings import NoiseSettings
from vicinal.data.table import Table
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

MAX_REDRAWS = 64


def open_set_labels(
    table: Table,
    fraction: float,
    cluster_size: float = NoiseSettings.open_set_cluster_size,
    embeddings: npt.NDArray[np.floating] | None = None,
    seed: int = 0,
) -> Table:
    """Dissolve whole training classes into many small clusters, each under the label of a remaining class.

    Reference: long-tail noise of "Center Contrastive Loss for Metric Learning" (CCL: Cai, Xiong, Tian, 2023), Section
    4.4, with 25 and 50 %, from "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection" (PRISM: Liu
    et al., CVPR 2021). The noise is open-set, since the true class of a noisy label no longer exists.

    Classes are dissolved in random order, as many as bring the number of altered images closest to the fraction. The
    clusters depend on the seed only. With another fraction a cluster keeps its label, unless that label's class is
    dissolved too.

    CCL does not say how large the clusters are or how they are found. PRISM clusters the features of a pretrained
    network (pass them as `embeddings`). In its published lists for CUB, the 58 images of one dissolved class have 22
    labels (9, 9, 5, 5, 4, 4, 3, 3, 2, 2 images and 12 times 1), the 59 images of another class 31; hence the default
    size of 2. Without `embeddings` a class is divided at random into clusters whose sizes have a similarly long tail:
    every cluster starts with one image, and each further image joins cluster i with a probability proportional to 1 / i
    (Zipf's law).

    Args:
        table: The images, with labels.
        fraction: The fraction of the training images, from 0 to 1.
        cluster_size: The mean number of images per cluster, at least 1. A class of n images is divided into
            n / cluster_size clusters, rounded and at least one.
        embeddings: Float [rows, dim], in the order of the table, for clusters by k-means with Euclidean distances.
            There are as many clusters as without, but at most one per distinct embedding of the class.
        seed: The seed of the random choices; not negative.

    Returns:
        The table with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: The table has no labels or no training image, no class would be left, the fraction, size or seed is
            out of range, or the embeddings are not finite or not one per row.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": list("aaaabbbbccccdddd")}))
        >>> noisy = open_set_labels(table, 0.5)
        >>> int(noisy.frame["noisy_label"].sum()), len(noisy.classes), noisy.frame["label_clean"].nunique()
        (8, 2, 4)
    """
    rows, rng = training_rows(table), noise_generator(seed, "open-set labels")
    training = table.take(rows)
    vectors = None if embeddings is None else check_embeddings(embeddings, len(table), "embeddings")[rows]
    num_clusters = _clusters_per_class(training.class_counts, cluster_size)
    dissolved = _dissolved_classes(training.class_counts, fraction, rng)
    labels = _cluster_labels(num_clusters, dissolved, noise_generator(seed, "labels of open-set clusters"))
    members = rows_by_class(training.labels)[1]
    clusters = [_clusters(members[each], num_clusters[each], vectors, rng) for each in dissolved]
    new_labels = [labels[each][cluster] for each, cluster in zip(dissolved, clusters, strict=True)]
    altered = _concatenate([members[each] for each in dissolved])
    log(
        f"dissolved {len(dissolved):,} of {len(num_clusters):,} training classes, {len(altered):,} of {len(rows):,} "
        f"images, into {sum(int(each.max()) + 1 for each in clusters):,} clusters under the labels of others"
    )
    return relabel(table, rows, altered, _concatenate(new_labels))


def _clusters_per_class(class_counts: Integers, cluster_size: float) -> Integers:
    if not 1 <= cluster_size < np.inf:
        raise InputError(f"the cluster size is {cluster_size}; it must be 1 or more")
    return np.maximum(np.rint(class_counts / cluster_size), 1).astype(np.int64)


def _dissolved_classes(class_counts: Integers, fraction: float, rng: np.random.Generator) -> Integers:
    """Choose the classes to dissolve. Those of a smaller fraction come first in a larger one."""
    check_noise_fraction(fraction)
    order = rng.permutation(len(class_counts))
    num_altered = np.cumsum([0, *class_counts[order]])
    number = int(np.abs(num_altered - fraction * num_altered[-1]).argmin())
    if number == len(order):
        raise InputError(
            f"a fraction of {fraction} dissolves all training classes ({number}); take less, so that some stay"
        )
    return order[:number]


def _cluster_labels(num_clusters: Integers, dissolved: Integers, rng: np.random.Generator) -> list[Integers]:
    """Draw a remaining class for each cluster of each class; a label of a dissolved class is drawn again.

    The same numbers are drawn whichever classes are dissolved, so that a cluster has the same label with another
    fraction where that is possible.
    """
    is_dissolved = np.isin(np.arange(len(num_clusters)), dissolved)
    labels = rng.integers(len(num_clusters), size=num_clusters.sum())
    for _ in range(MAX_REDRAWS):
        if not is_dissolved[labels].any():
            break
        redrawn = rng.integers(len(num_clusters), size=len(labels))
        labels = np.where(is_dissolved[labels], redrawn, labels)
    unlucky = is_dissolved[labels]  # possible if few classes remain
    labels[unlucky] = rng.choice(np.flatnonzero(~is_dissolved), unlucky.sum())
    return np.split(labels, np.cumsum(num_clusters)[:-1])


def _concatenate(parts: list[Integers]) -> Integers:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _clusters(rows: Integers, num_clusters: int, vectors: Floats | None, rng: np.random.Generator) -> Integers:
    """The cluster of each row of a class, numbered from 0."""
    if vectors is None:
        return _random_clusters(len(rows), num_clusters, rng)
    return _k_means_clusters(vectors[rows], num_clusters, rng)


def _random_clusters(num_images: int, num_clusters: int, rng: np.random.Generator) -> Integers:
    """A random cluster for each image, `[num_images]`; none is empty, and the sizes follow Zipf's law."""
    weights = 1 / np.arange(1, num_clusters + 1)
    further = rng.choice(num_clusters, num_images - num_clusters, p=weights / weights.sum())
    return rng.permutation(np.concatenate([np.arange(num_clusters), further]))


def _k_means_clusters(vectors: Floats, num_clusters: int, rng: np.random.Generator) -> Integers:
    """A cluster for each image, `[num_images]`, by k-means."""
    from sklearn.cluster import KMeans  # takes a second to import

    num_clusters = min(num_clusters, len(np.unique(vectors, axis=0)))
    seed = int(rng.integers(2**31))
    return KMeans(num_clusters, n_init=1, random_state=seed).fit_predict(vectors).astype(np.int64)
