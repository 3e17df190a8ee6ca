"""A map of the embeddings in two dimensions: where each image is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.retrieval.scores import Array, UnitVectors

MAP_IMAGES = 2000
FEWEST_IMAGES = 5
PERPLEXITY, COMPONENTS = 30.0, 50  # of t-SNE; of the PCA before it, which makes it faster and little else
SIDE = 10_000  # places are whole numbers from 0 to this

Integers = npt.NDArray[np.int64]


class Map(NamedTuple):
    """Where images are on a map.

    Attributes:
        rows: int64 [m], which row of the table each is, ascending.
        places: int64 [m, 2], from 0 to 10,000, on one scale in both directions.
    """

    rows: Integers
    places: Integers


def embedding_map(
    vectors: Array, labels: Integers, rows: Integers, images: int = MAP_IMAGES, seed: int = 0
) -> Map | None:
    """Place images by t-SNE, so that similar ones are near each other.

    Of more than `images`, whole classes are drawn by chance until there are enough, so that a class on the map is
    there with its images; of a class with very many, some.

    Args:
        vectors: float [all, dim].
        labels: int64 [all].
        rows: int64 [n], those that may be on the map.
        images: how many at most.
        seed: of the draw, and of t-SNE.

    Returns:
        None where there are too few images, or all are the same.

    Example:
        >>> embedding_map(np.eye(8), np.arange(8) // 2, np.arange(8)).places.shape
        (8, 2)
    """
    rows = drawn_rows(labels, rows, images, seed)
    if len(rows) < FEWEST_IMAGES:
        return None
    unit = UnitVectors(vectors, "embedding").take(rows).cpu().numpy()
    if (unit == unit[0]).all():
        return None
    return Map(rows, _whole(_tsne(unit, seed)))


def drawn_rows(labels: Integers, rows: Integers, images: int, seed: int) -> Integers:
    """Rows of whole classes, as many as fit, ascending; of classes too large for forty to fit, a part each.

    Example:
        >>> labels = np.array([0, 0, 1, 1, 2, 2])
        >>> rows = drawn_rows(labels, np.arange(6), images=4, seed=0)
        >>> np.unique(labels[rows], return_counts=True)[1]
        array([2, 2])
    """
    if len(rows) <= images:
        return np.sort(rows)
    generator = np.random.default_rng(seed)
    mixed = generator.permutation(rows)
    present = generator.permutation(np.unique(labels[rows]))
    order = np.empty(int(labels.max()) + 1, dtype=np.int64)
    order[present] = np.arange(len(present))
    of_class = -(-images // min(len(present), 40))  # so that there are 40 classes where there are that many
    turns = pd.Series(labels[mixed]).groupby(labels[mixed]).cumcount().to_numpy()
    few = mixed[turns < of_class]
    return np.sort(few[np.argsort(order[labels[few]], kind="stable")][:images])


def _tsne(unit: npt.NDArray[np.float32], seed: int) -> npt.NDArray[np.float64]:
    from sklearn.decomposition import PCA  # takes a second to import
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(PERPLEXITY, (len(unit) - 1) / 3)
    with threadpool_limits(1):  # or the map would depend on the number of cores
        if min(unit.shape) > COMPONENTS:
            unit = PCA(COMPONENTS, random_state=seed).fit_transform(unit)
        if unit.shape[1] < 2:
            unit = np.pad(unit, ((0, 0), (0, 1)))
        return TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(unit).astype(np.float64)


def _whole(places: npt.NDArray[np.float64]) -> Integers:
    """The middle of the map stays in the middle; its longer side is filled."""
    low, high = places.min(axis=0), places.max(axis=0)
    largest = max(float((high - low).max()), 1e-12)
    return np.rint(((places - (low + high) / 2) / largest + 0.5) * SIDE).astype(np.int64)
