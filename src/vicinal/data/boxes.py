"""Bounding boxes: several objects of one image file, each a row of the table that is cropped when the image is read."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import pandas as pd

from vicinal.data.columns import BOX_COLUMNS
from vicinal.utils.console import counted
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

    from vicinal.data.images.decoding import EncodedJpeg

    AnyImage = TypeVar("AnyImage", Image.Image, Image.Image | EncodedJpeg)

Box: TypeAlias = tuple[float, float, float, float]
"""The left, top, right and bottom edge, in pixels of the upright image."""


def row_boxes(frame: pd.DataFrame) -> list[Box | None]:
    """The bounding box of each row, None where it has none.

    Example:
        >>> row_boxes(pd.DataFrame([[0, 1, 5, 6], [np.nan] * 4], columns=["x_1", "y_1", "x_2", "y_2"]))
        [(0.0, 1.0, 5.0, 6.0), None]
    """
    if not set(BOX_COLUMNS) <= set(frame):
        return [None] * len(frame)
    edges = frame[list(BOX_COLUMNS)].to_numpy(dtype=np.float64, na_value=np.nan)
    return [None if math.isnan(row[0]) else (row[0], row[1], row[2], row[3]) for row in edges.tolist()]


def image_keys(frame: pd.DataFrame) -> list[str]:
    """A unique name of each image of a table: its path, and the bounding box if it has one."""
    paths = [str(path) for path in frame["path"]]
    return [image_key(path, box) for path, box in zip(paths, row_boxes(frame), strict=True)]


def image_key(path: str, box: Box | None) -> str:
    """The unique name of an image, see :func:`image_keys`."""
    return path if box is None else f"{path} [{', '.join(f'{edge:.10g}' for edge in box)}]"


def crop_to_box(image: AnyImage, box: Box | None, path: object) -> AnyImage:
    """The part of an image within a bounding box; pixels that are partly inside belong to it.

    Args:
        image: The upright image, or a JPEG that is not decoded yet.
        box: Its box, clipped to the image. None: the whole image.
        path: The file, for messages.

    Example:
        >>> from PIL import Image
        >>> crop_to_box(Image.new("L", (9, 9)), (-np.inf, 1.0, 5.5, 6.0), "a.png").size
        (6, 5)
    """
    if box is None:
        return image
    width, height = image.size
    edges = np.clip(box, 0, [width, height, width, height])  # before they are rounded: they may be infinite
    if not (edges[0] < edges[2] and edges[1] < edges[3]):  # NaN neither
        given = ", ".join(f"{edge:g}" for edge in box)
        raise InputError(f"{path}: the bounding box {given} lies outside of the image, {width} x {height}")
    left, top, right, bottom = edges.tolist()
    return image.crop((math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)))


def warn_of_repeated_images(frame: pd.DataFrame, stacklevel: int) -> None:
    """Warn if a split has two rows of one image that are both in the gallery: they would find each other at once.

    Rows of one file with different bounding boxes are different images.
    """
    if "path" not in frame:
        return
    told_apart = [column for column in ("path", "split", *BOX_COLUMNS) if column in frame]
    is_repeated = frame.duplicated(told_apart, keep=False)
    if "is_gallery" in frame:
        is_repeated &= frame["is_gallery"].astype(bool)
        is_repeated &= frame[is_repeated].duplicated(told_apart, keep=False).reindex(frame.index, fill_value=False)
    if not is_repeated.any():
        return
    repeated = frame[is_repeated]
    images = repeated.groupby(told_apart, dropna=False, sort=False)
    path = repeated["path"].iloc[0]
    rows = " and ".join(map(str, repeated.index[repeated["path"] == path][:2]))
    wrong = int((images["label"].nunique() > 1).sum()) if "label" in frame else 0
    warnings.warn(
        f"{counted(images.ngroups, 'image is', 'images are')} in several rows, such as {path} (rows {rows})"
        + (f", {wrong:,} of them with different labels" if wrong else "")
        + ": such rows find each other, which makes scores too high; keep one of each",
        stacklevel=stacklevel + 1,
    )
