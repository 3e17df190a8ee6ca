"""The quality of the photos of individuals: how small, how blurred, and how much like the others of their identity."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.data.columns import Box, row_boxes
from vicinal.data.images.decoding import open_image, thumbnail
from vicinal.data.table import Table
from vicinal.retrieval.by_class import class_similarities
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError
from vicinal.utils.threads import thread_pool

MIN_SIDE = 64  # pixels of the shorter side of a photo that is not small
SHARPNESS_SIDE = 256  # pixels of the longer side at which sharpness is measured
BLURRED = 0.1  # times the median sharpness of the photos; below it, a photo counts as blurred


def photo_quality(embeddings: Array, table: Table, rows: Integers | None = None) -> pd.DataFrame:
    """Measure photos of individuals, and note what may be wrong with them.

    Args:
        embeddings: float [photos, dim].
        table: one row per embedding, with labels, the identities; the files of photos with paths are read.
        rows: int64 [n], the rows that are measured; None: all.

    Returns:
        One row per measured photo: `row`; `shorter_side` in pixels, of the bounding box if there is one; `sharpness`,
        the variance of the Laplacian of its gray values at a longer side of at most 256 pixels; both NaN without a
        readable file. `own_similarity`, the cosine similarity to the most similar other photo of its identity, NaN for
        its only photo; `other`, the most similar other identity, None without one, and `other_similarity`; and `note`,
        what is wrong with it, or an empty text: it is small (a shorter side below 64 pixels), blurred (less than a
        tenth of the median sharpness), or more similar to another identity than to its own.

    Raises:
        InputError: numbers of rows differ, or no labels.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["Ada", "Ada", "Bo"]}))
        >>> quality = photo_quality(np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), table)
        >>> quality["own_similarity"].round(2).tolist(), quality["note"][1]
        ([0.6, 0.6, nan], 'more like Bo (0.80) than its own (0.60)')
    """
    check_rows(embeddings, table)
    measured = np.arange(len(table)) if rows is None else rows
    labels, gallery = table.labels, UnitVectors(embeddings, "embedding")
    found = class_similarities(
        UnitVectors(embeddings, "embedding", measured), gallery, labels[measured], labels,
        Exclusions(len(measured), len(table), measured), num_others=1,
    )  # fmt: skip
    names = np.array([*table.classes, None], dtype=object)
    frame = pd.DataFrame({
        "row": measured, **_file_measures(table.take(measured)),
        "own_similarity": np.where(found.own > -np.inf, found.own, np.nan).astype(np.float64),
        "other": names[found.other_labels[:, 0]],
        "other_similarity": np.where(found.other_labels[:, 0] >= 0, found.others[:, 0], np.nan).astype(np.float64),
    })  # fmt: skip
    least = BLURRED * frame["sharpness"].median()
    return frame.assign(note=[_note(each, least) for each in frame.to_dict("records")])


def _file_measures(table: Table) -> dict[str, list[float]]:
    if not table.has("path"):
        return {"shorter_side": [np.nan] * len(table), "sharpness": [np.nan] * len(table)}
    with thread_pool() as pool:
        found = list(pool.map(_measure_image, table.paths, row_boxes(table.frame)))
    return {"shorter_side": [side for side, _ in found], "sharpness": [sharpness for _, sharpness in found]}


def _measure_image(path: str, box: Box | None) -> tuple[float, float]:
    """The shorter side and the sharpness of an image; NaN of one that cannot be read."""
    from scipy.ndimage import laplace

    try:
        with open_image(path) as image:
            width, height = image.size
        gray = np.asarray(thumbnail(path, box, SHARPNESS_SIDE).convert("L"), dtype=np.float64)
    except InputError:
        return np.nan, np.nan
    left, top, right, bottom = box or (0, 0, width, height)
    sides = min(right, width) - max(left, 0), min(bottom, height) - max(top, 0)
    return float(min(sides)), float(laplace(gray).var())


def _note(photo: dict[str, float], least_sharpness: float) -> str:
    notes = []
    if photo["shorter_side"] < MIN_SIDE:
        notes.append(f"small: {photo['shorter_side']:.0f} pixels")
    if photo["sharpness"] < least_sharpness:
        notes.append("blurred")
    if photo["other_similarity"] > photo["own_similarity"]:
        notes.append(
            f"more like {photo['other']} ({photo['other_similarity']:.2f}) than its own ({photo['own_similarity']:.2f})"
        )
    return ", ".join(notes)
