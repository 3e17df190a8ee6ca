"""Facts about the pixels of image files, from one pass over them: information, thumbnails, errors."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
from PIL import Image

from vicinal.data.boxes import Box, crop_to_box, row_boxes
from vicinal.data.images.decoding import decoded, open_image
from vicinal.data.table import Table
from vicinal.utils.console import track
from vicinal.utils.errors import InputError
from vicinal.utils.threads import thread_pool

GRAY_SIDE = 512  # longer side in pixels at which an image is measured, so that large images compare with small
THUMBNAIL_SIDE = 32
MIN_ENTROPY = 3.0  # bits; photographs have 6 to 8


@dataclass(frozen=True, eq=False)
class ImageFacts:
    """Facts about the images of a table.

    Attributes:
        frame: one row per row of the table:

            - `row`: that row.
            - `entropy`: of the histogram of gray values within the bounding box, if there is one, in bits, from 0 (one
              value) to 8; NaN if the file cannot be read.
            - `error`: what is wrong with a file that cannot be read, else an empty text.
        thumbnails: uint8 [rows, 32, 32], gray, not in proportion; black without an image.
    """

    frame: pd.DataFrame
    thumbnails: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

    @property
    def broken(self) -> pd.DataFrame:
        """The images that cannot be read, with the columns `row` and `error`."""
        return self.frame.loc[self.frame["error"] != "", ["row", "error"]].reset_index(drop=True)

    @property
    def uninformative(self) -> pd.DataFrame:
        """Images of few gray values, such as blank ones, glyphs and logos, the lowest entropy first.

        Columns are `row` and `entropy`. Their entropy is below 3 bits.
        """
        found = self.frame.loc[self.frame["entropy"] < MIN_ENTROPY, ["row", "entropy"]]
        return found.sort_values("entropy", kind="stable", ignore_index=True)


def image_facts(table: Table) -> ImageFacts:
    """Read all images of a table and measure them; each file is read once for every row, in several threads.

    Args:
        table: with paths, and perhaps bounding boxes.

    Raises:
        InputError: the table has no paths.

    Example:
        >>> facts = image_facts(Table(pd.DataFrame({"path": ["/lost.png"]})))
        >>> facts.broken["error"].tolist()
        ['/lost.png: no such file']
    """
    paths, boxes = table.paths, row_boxes(table.frame)
    thumbnails = np.zeros((len(table), THUMBNAIL_SIDE, THUMBNAIL_SIDE), dtype=np.uint8)
    entropies = np.full(len(table), np.nan)
    errors = [""] * len(table)
    with thread_pool() as pool:
        found = pool.map(_measured, paths, boxes)
        for row, each in enumerate(track(found, "reading images", len(table), sys.stderr.isatty())):
            if isinstance(each, str):
                errors[row] = each
            else:
                entropies[row], thumbnails[row] = each
    frame = pd.DataFrame({"row": np.arange(len(table)), "entropy": entropies, "error": errors})
    return ImageFacts(frame, thumbnails)


def _measured(path: str, box: Box | None) -> tuple[float, np.ndarray] | str:
    """The entropy and the thumbnail of an image, or what is wrong with its file."""
    try:
        with open_image(path, channels=1) as opened:
            reduction = max(opened.size) / GRAY_SIDE if box is None else 1.0
            gray = crop_to_box(decoded(opened, max_reduction=max(reduction, 1.0)), box, path)
    except InputError as error:
        return str(error)
    gray.thumbnail((GRAY_SIDE, GRAY_SIDE), Image.Resampling.BOX)
    entropy = gray.entropy() + 0.0  # not -0
    return entropy, np.asarray(gray.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX))
