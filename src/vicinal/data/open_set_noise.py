"""Open-set label noise: whole classes are dissolved into the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vicinal.console import log
from vicinal.data.embeddings import checked_vectors
from vicinal.data.noise_rows import Rows, generator, relabelled, require_share, training_rows
from vicinal.data.samplers import rows_by_class
from vicinal.data.table import Table
from vicinal.errors import InputError

CLUSTER_SIZE = 2.0
MOST_DRAWS = 64


def open_set_labels(
    table: Table,
    share: float,
    cluster_size: float = CLUSTER_SIZE,
    embeddings: npt.NDArray[np.floating] | None = None,
    seed: int = 0,
) -> Table:
    """Dissolve whole training classes into many small clusters, each under the label of a class that stays.

    Long-tail noise of "Center Contrastive Loss for Metric Learning" (CCL: Cai, Xiong, Tian, 2023), 4.4, there 25 and
    50 %, taken from "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection" (PRISM: Liu et al.,
    CVPR 2021): the noise is open-set, as the true class of a wrong label is there no more.

    Classes are dissolved in random order; so many that the altered images come as close as can be to the share. The
    cluster of an image depends on the seed alone, and its label changes with the share only where its class is
    dissolved too.

    CCL does not say how large the clusters are nor how they are found. PRISM clusters the features of a pretrained
    network (give `embeddings` for that). In its published lists for CUB the 58 images of one dissolved class are under
    22 labels (9, 9, 5, 5, 4, 4, 3, 3, 2, 2 and 12 times 1), the 59 of another under 31; hence the default size of 2.
    Without `embeddings` a class is divided at random, into sizes that are as long-tailed: every cluster begins with an
    image, and each further one joins the i-th with a probability in proportion to 1 / i (Zipf's law).

    Args:
        table: the images, with labels.
        share: from 0 to 1, of the training images.
        cluster_size: mean images of a cluster, at least 1: a class of n images makes n / cluster_size clusters, rounded
            and at least one.
        embeddings: float [rows, dim], in the order of the table; the clusters are then those of k-means (Euclidean), as
            many as without, though no more than a class has distinct embeddings.
        seed: not negative.

    Returns:
        The table, with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: no labels, no training image, a share that leaves no class, an impossible share, size or seed, or
            embeddings that are not finite or not one a row.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": list("aaaabbbbccccdddd")}))
        >>> noisy = open_set_labels(table, 0.5)
        >>> int(noisy.frame["noisy_label"].sum()), len(noisy.classes), noisy.frame["label_clean"].nunique()
        (8, 2, 4)
    """
    rows, rng = training_rows(table), generator(seed, "open-set labels")
    training = table.take(rows)
    vectors = None if embeddings is None else checked_vectors(embeddings, len(table), "embeddings")[rows]
    number = _clusters_of_classes(training.class_counts, cluster_size)
    dissolved = _dissolved(training.class_counts, share, rng)
    labels = _labels_of_clusters(number, dissolved, generator(seed, "labels of open-set clusters"))
    by_class = rows_by_class(training.labels)[1]
    clusters = [_clusters(by_class[each], number[each], vectors, rng) for each in dissolved]
    wrong = [labels[each][cluster] for each, cluster in zip(dissolved, clusters, strict=True)]
    altered = _joined([by_class[each] for each in dissolved])
    log(
        f"dissolved {len(dissolved):,} of {len(number):,} training classes, {len(altered):,} of {len(rows):,} images, "
        f"into {sum(int(each.max()) + 1 for each in clusters):,} clusters under the labels of others"
    )
    return relabelled(table, rows, altered, _joined(wrong))


def _clusters_of_classes(class_counts: Rows, cluster_size: float) -> Rows:
    """How many clusters each class makes, `[C]`."""
    if not 1 <= cluster_size < np.inf:
        raise InputError(f"the cluster size is {cluster_size}; it must be 1 or more")
    return np.maximum(np.rint(class_counts / cluster_size), 1).astype(np.int64)


def _dissolved(class_counts: Rows, share: float, rng: np.random.Generator) -> Rows:
    """The classes that are dissolved; with a larger share those of a smaller one are the first."""
    require_share(share)
    order = rng.permutation(len(class_counts))
    altered = np.cumsum([0, *class_counts[order]])
    number = int(np.abs(altered - share * altered[-1]).argmin())
    if number == len(order):
        raise InputError(f"a share of {share} dissolves all training classes ({number}); take less, so that some stay")
    return order[:number]


def _labels_of_clusters(clusters: Rows, dissolved: Rows, rng: np.random.Generator) -> list[Rows]:
    """A class that stays for each cluster of each class, drawn again as long as it is a dissolved one.

    All are drawn alike whatever is dissolved, so that a cluster has the same label with another share, if it can.
    """
    is_dissolved = np.isin(np.arange(len(clusters)), dissolved)
    labels = rng.integers(len(clusters), size=clusters.sum())
    for _ in range(MOST_DRAWS):
        if not is_dissolved[labels].any():
            break
        again = rng.integers(len(clusters), size=len(labels))
        labels = np.where(is_dissolved[labels], again, labels)
    bad = is_dissolved[labels]  # where few classes stay
    labels[bad] = rng.choice(np.flatnonzero(~is_dissolved), bad.sum())
    return np.split(labels, np.cumsum(clusters)[:-1])


def _joined(parts: list[Rows]) -> Rows:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _clusters(members: Rows, number: int, vectors: npt.NDArray[np.float32] | None, rng: np.random.Generator) -> Rows:
    """The cluster of each member of a class, numbered from 0."""
    if vectors is None:
        return _random_clusters(len(members), number, rng)
    return _nearby_clusters(vectors[members], number, rng)


def _random_clusters(images: int, clusters: int, rng: np.random.Generator) -> Rows:
    """A cluster for each image, `[images]`; none is empty, and their sizes are long-tailed."""
    weights = 1 / np.arange(1, clusters + 1)
    further = rng.choice(clusters, images - clusters, p=weights / weights.sum())
    return rng.permutation(np.concatenate([np.arange(clusters), further]))


def _nearby_clusters(vectors: npt.NDArray[np.float32], clusters: int, rng: np.random.Generator) -> Rows:
    """A cluster for each image, `[images]`, by k-means."""
    from sklearn.cluster import KMeans  # takes a second to import, and only this needs it

    number = min(clusters, len(np.unique(vectors, axis=0)))
    return KMeans(number, n_init=1, random_state=int(rng.integers(2**31))).fit_predict(vectors).astype(np.int64)
