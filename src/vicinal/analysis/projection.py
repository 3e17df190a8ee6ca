"""A map of embeddings in two dimensions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.data.class_samples import sample_classes
from vicinal.data.table import Table
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arrays import Doubles, Floats

MAX_MAP_IMAGES = 2000
MIN_IMAGES = 5
PERPLEXITY = 30.0
PCA_COMPONENTS = 50  # before t-SNE, which is faster for it and changes little


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

    Example:
        >>> embedding_map(np.eye(8), Table(pd.DataFrame({"label": list("aabbccdd")}))).shape
        (8, 3)
    """
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
