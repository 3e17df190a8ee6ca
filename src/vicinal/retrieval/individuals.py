"""Identification of individuals: the identity of a gallery that a photo shows, or a proposed new one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.table import Table
from vicinal.retrieval.by_class import class_similarities
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.linkage import cluster_photos
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arguments import is_integer, is_number, shown
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


def identify(index: ImageIndex, vectors: Floats, table: Table, *, min_score: float | None = None) -> pd.DataFrame:
    """Say for every photo which identity of the index it shows, or that it is of a new individual.

    The identities are the labels of the index, each with one photo or several. A photo is compared with all of them,
    pooled as the calibration of the index says (:func:`~vicinal.retrieval.class_similarities`). The nearest identity is
    accepted by the calibration's threshold; the other photos are clustered by :func:`average_linkage`, and each cluster
    is proposed as one new identity.

    Args:
        index: of identities, with its :attr:`~vicinal.Index.calibration`.
        vectors: float32 [n, d], the photos.
        table: one row per photo.
        min_score: the least similarity to an accepted identity, by its best photo, and between photos of one new
            individual, in place of the calibration.

    Returns:
        One row per photo: `identity`, the accepted identity, or the name of a new one, such as `new-1` (the next
        integer where labels are integers), of the largest cluster first; `is_new`; `nearest`, the most similar identity
        of the index; its `score`, of the kind of the calibration; and `probability`, that the photo is of it, NaN
        without a calibration.

    Raises:
        InputError: the index has no labels, a refiner, neither a calibration nor a minimum, or another dimension; or
            more than 10,000 photos are new.

    Example:
        >>> from vicinal import Index
        >>> index = Index.build(np.eye(3)[:2], Table(pd.DataFrame({"label": ["Ada", "Bo"]})))
        >>> photos = np.array([[0.9, 0.1, 0], [0.1, 0, 1], [0, 0.1, 1]], dtype=np.float32)
        >>> found = identify(index, photos, Table(pd.DataFrame(index=range(3))), min_score=0.7)
        >>> found["identity"].tolist(), found["nearest"].tolist()
        (['Ada', 'new-1', 'new-1'], ['Ada', 'Ada', 'Bo'])
    """
    calibration = index.calibration if min_score is None else None
    bound, min_similarity = _thresholds(index, calibration, min_score)
    gallery, enrolled = enrolled_photos(index)
    queries = UnitVectors(vectors, "photo")
    found = class_similarities(
        queries, UnitVectors(gallery, "vector"), np.full(len(queries), len(enrolled.classes)), enrolled.labels,
        pooling="best" if calibration is None else calibration.pooling,
    )  # fmt: skip
    scores = found.best.astype(np.float64)
    if calibration is not None and calibration.score == "margin":
        scores = scores - found.runner_up
    is_new = scores < bound
    nearest = np.array(enrolled.classes, dtype=object)[found.other_labels[:, 0]]
    identities = nearest.copy()
    clusters = cluster_photos(queries.take(np.flatnonzero(is_new)).cpu().numpy(), min_similarity)
    proposed = new_names(int(clusters.max(initial=-1)) + 1, enrolled.classes)
    identities[is_new] = [proposed[cluster] for cluster in clusters.tolist()]
    probabilities = np.full(len(scores), np.nan) if calibration is None else calibration.probability(scores)
    return pd.DataFrame({"identity": identities, "is_new": is_new, "nearest": nearest, "score": scores,
                         "probability": probabilities}, index=table.frame.index)  # fmt: skip


def enrolled_photos(index: ImageIndex) -> tuple[Floats, Table]:
    """The photos of an index that have labels, the identities.

    Returns:
        Vectors, float32 [n, d], and a table with `label`, and with paths and bounding boxes if all have paths.

    Raises:
        InputError: there are none.
    """
    vectors, frame = index.contents()
    has_label = frame["label"].notna().to_numpy(dtype=bool) if "label" in frame else np.zeros(len(frame), dtype=bool)
    if not has_label.any():
        raise InputError("the index has no identities; add photos with labels: vicinal enroll")
    frame = frame[has_label]
    has_paths = "path" in frame and bool(frame["path"].notna().all())
    columns = [name for name in ("path", *BOX_COLUMNS) if name in frame and has_paths]
    return vectors[has_label], Table(frame[["label", *columns]])


def _thresholds(index: ImageIndex, calibration: Calibration | None, min_score: float | None) -> tuple[float, float]:
    """The least score of an accepted identity, and the least similarity of photos of a new one."""
    if index.refiner_fingerprint is not None:
        raise InputError("the index holds refined embeddings; identify individuals by an index without a refiner")
    if min_score is not None:
        if not (is_number(min_score) and -1 <= min_score <= 1):
            raise InputError(f"min_score = {shown(min_score)} is invalid; use one from -1 to 1, such as 0.6")
        return min_score, min_score
    if calibration is None:
        raise InputError("the index has no calibration; make one: vicinal calibrate SOURCE --index INDEX, or give "
                         "min_score (--min_score)")  # fmt: skip
    if calibration.cluster_threshold is None:
        raise InputError("the calibration has no cluster_threshold, as its classes have one photo each; give min_score "
                         "(--min_score)")  # fmt: skip
    return calibration.threshold, calibration.cluster_threshold


def new_names(number: int, taken: Collection[Any]) -> list[Any]:
    """Unused names for new identities.

    Example:
        >>> new_names(2, ["Ada", "new-1"]), new_names(2, [3, 7])
        (['new-2', 'new-3'], [8, 9])
    """
    if taken and all(is_integer(name) for name in taken):
        return list(range(max(taken) + 1, max(taken) + 1 + number))
    used = {str(name) for name in taken}
    free = (name for at in range(1, number + len(used) + 1) if (name := f"new-{at}") not in used)
    return [next(free) for _ in range(number)]
