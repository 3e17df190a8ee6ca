"""Label noise: labels of random classes, of classes that are easily confused, or of dissolved classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vicinal.data.batches.balanced_batches import rows_by_class
from vicinal.data.checks import check_embeddings
from vicinal.data.columns import is_coarse_column
from vicinal.data.settings import NoiseSettings
from vicinal.data.table import Table
from vicinal.data.table_files import read_csv
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

Name = str | int
Confusions = Mapping[str, Name | Sequence[Name]] | Mapping[int, Name | Sequence[Name]] | str | Path
MAX_REDRAWS = 64


def training_rows(table: Table) -> Integers:
    """The rows of the split `train`, or all rows of a table without splits."""
    is_training = (table.frame["split"] == "train").to_numpy() if table.has("split") else np.ones(len(table), bool)
    if not is_training.any():
        raise InputError(f"the table has no training images to alter; its splits: {', '.join(table.splits) or 'none'}")
    return np.flatnonzero(is_training)


def noise_generator(seed: int, kind: str) -> np.random.Generator:
    """The random generator of one kind of noise; different kinds choose their rows independently."""
    if seed < 0:
        raise InputError(f"seed is {seed}; it must not be negative")
    return np.random.default_rng([seed, *kind.encode()])


def choose_rows(num_rows: int, fraction: float, rng: np.random.Generator) -> Integers:
    """Choose a fraction of the rows 0, ..., num_rows - 1. The rows of a smaller fraction come first in a larger one."""
    check_noise_fraction(fraction)
    return rng.permutation(num_rows)[: round(fraction * num_rows)]


def check_noise_fraction(fraction: float) -> None:
    if not 0 <= fraction <= 1:
        raise InputError(f"the fraction of noise is {fraction}; it must be from 0 to 1")


def mark_rows(table: Table, column: str, rows: Integers) -> Table:
    """Set a boolean column to true in some rows, and to false elsewhere if the table does not have it yet."""
    marks = table.frame[column].to_numpy(bool, copy=True) if table.has(column) else np.zeros(len(table), bool)
    marks[rows] = True
    return Table._from_valid(table.frame.assign(**{column: marks}))


def relabel(table: Table, rows: Integers, altered: Integers, new_labels: Integers) -> Table:
    """Replace the labels of some training rows, with the coarse labels that belong to them.

    The column `label_clean` keeps the labels before the first noise of any kind; `noisy_label` is true in altered rows.
    These are positions `[a]` in the training rows `[n]`. Their new labels `[a]` are codes of training classes, and
    their coarse labels are those of the first training image of the class.
    """
    first_of_class = rows[np.unique(table.take(rows).labels, return_index=True)[1]]
    source = np.arange(len(table))
    source[rows[altered]] = first_of_class[new_labels]
    frame = table.frame if table.has("label_clean") else table.frame.assign(label_clean=table.frame["label"])
    columns = ["label", *filter(is_coarse_column, frame.columns)]
    frame = frame.assign(**{column: frame[column].iloc[source].array for column in columns})
    return mark_rows(Table._from_valid(frame), "noisy_label", rows[altered])


def random_labels(table: Table, fraction: float, seed: int = 0) -> Table:
    """Replace the labels of a fraction of the training images by the label of another training class, at random.

    Reference: label noise of "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization"
    (Liao, Tsiligkaridis, Kulis, ICML 2023), Section 4.4, with 5, 10 and 20 %; symmetric noise of "Center Contrastive
    Loss for Metric Learning" (Cai, Xiong, Tian, 2023), Section 4.4, with 10 and 20 %. Every other class is equally
    likely. Neither paper says whether an image may keep its own label; here it may not, so that the fraction of noisy
    labels is exact.

    Args:
        table: The images, with labels.
        fraction: The fraction of the training images, from 0 to 1; rounded to whole images.
        seed: The seed of the random choices; not negative.

    Returns:
        The table with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: The table has no labels, no training image or fewer than two training classes, or the fraction or
            seed is out of range.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["a", "a", "b", "b"], "coarse": ["A", "A", "B", "B"]}))
        >>> sorted(random_labels(table, 0.25, seed=1).frame["noisy_label"])
        [False, False, False, True]
    """
    rows, rng = training_rows(table), noise_generator(seed, "labels")
    training = table.take(rows)
    num_classes = len(training.classes)
    if num_classes < 2:
        raise InputError(f"random labels need two training classes or more; there is only {training.classes[0]!r}")
    altered = choose_rows(len(rows), fraction, rng)
    steps = rng.integers(1, num_classes, len(altered))  # how many classes further, so never the own class
    new_labels = (training.labels[altered] + steps) % num_classes
    log(f"gave {len(altered):,} of {len(rows):,} training images the label of another class")
    return relabel(table, rows, altered, new_labels)


def confused_labels(table: Table, confusions: Confusions, fraction: float, seed: int = 0) -> Table:
    """Replace labels of some classes by the label of a class that theirs is confused with.

    Reference: asymmetric noise, as in "Making Deep Neural Networks Robust to Label Noise: a Loss Correction Approach"
    (Patrini, Rozza, Menon, Nock, Qu, CVPR 2017). Similar classes are confused, not necessarily in both directions.

    Args:
        table: The images, with labels.
        confusions: For each training class that is confused, the other training class, or a list of equally likely
            ones; or a CSV file with the columns `label` and `confused_with`, one pair per line. A class that is listed
            twice is twice as likely. 5 and "5" are the same class.
        fraction: The fraction of the training images of the confused classes, from 0 to 1; rounded to whole images.
        seed: The seed of the random choices; not negative.

    Returns:
        The table with the columns `label_clean` and `noisy_label`.

    Raises:
        InputError: The table has no labels or no training image, there are no confusions or their file cannot be read,
            a name is not a training class or is confused with itself, or the fraction or seed is out of range.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "owl"]}))
        >>> confused_labels(table, {"cat": "dog", "dog": ["cat", "owl"]}, fraction=1.0).frame["label"].tolist()
        ['dog', 'dog', 'cat', 'owl']
    """
    rows, rng = training_rows(table), noise_generator(seed, "confused labels")
    training = table.take(rows)
    confused_with = _confused_with(confusions, training.classes)
    candidates = np.flatnonzero(np.isin(training.labels, list(confused_with)))
    altered = candidates[choose_rows(len(candidates), fraction, rng)]
    choices = [confused_with[label] for label in training.labels[altered]]
    drawn = rng.integers([len(each) for each in choices])
    new_labels = np.array([each[index] for each, index in zip(choices, drawn, strict=True)], np.int64)
    log(
        f"gave {len(altered):,} of {len(candidates):,} training images of {len(confused_with):,} classes "
        "the label of a class theirs is confused with"
    )
    return relabel(table, rows, altered, new_labels)


def _confused_with(confusions: Confusions, classes: Sequence[Name]) -> dict[int, list[int]]:
    """For each confused class the classes that it is confused with, as positions in `classes`."""
    positions = {str(name): position for position, name in enumerate(classes)}
    confused: dict[int, list[int]] = {}
    for label, other, source in _pairs(confusions):
        for name in (label, other):
            if name not in positions:
                known = f"there are {len(classes)}, such as {str(classes[0])!r}"
                raise InputError(f"{source}: {name!r} is not a training class; {known}")
        if label == other:
            raise InputError(f"{source}: {label!r} is confused with itself; name another class")
        confused.setdefault(positions[label], []).append(positions[other])
    if not confused:
        raise InputError("confusions are empty; name at least one class and the one it is confused with")
    return confused


def _pairs(confusions: Confusions) -> Iterator[tuple[str, str, str]]:
    if not isinstance(confusions, Mapping):
        yield from _pairs_in_file(Path(confusions))
        return
    for label, others in confusions.items():
        for other in [others] if isinstance(others, (str, int, np.integer)) else others:
            yield str(label), str(other), "confusions"


def _pairs_in_file(path: Path) -> Iterator[tuple[str, str, str]]:
    frame = read_csv(path)
    for column in ("label", "confused_with"):
        if list(frame.columns).count(column) != 1:
            raise InputError(f"{path}: a list of confusions has one column label and one column confused_with")
    for line, label, other in zip(frame.index, frame["label"], frame["confused_with"], strict=True):
        yield str(label).strip(), str(other).strip(), f"{path}, line {line}"


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
    clusters = [
        _random_clusters(len(members[each]), num_clusters[each], rng)
        if vectors is None
        else _k_means_clusters(vectors[members[each]], num_clusters[each], rng)
        for each in dissolved
    ]
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
            f"a fraction of {fraction} dissolves all training classes ({number}); use less, so that some stay"
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
