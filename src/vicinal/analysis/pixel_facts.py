"""Facts about the pixels of image files, from one pass over them: sizes, sharpness, information, thumbnails."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
from PIL import Image
from scipy.ndimage import laplace

from vicinal.data.boxes import Box, crop_to_box, row_boxes
from vicinal.data.images.decoding import decoded, open_image
from vicinal.data.table import Table
from vicinal.utils.arrays import Doubles, Floats
from vicinal.utils.console import track
from vicinal.utils.errors import InputError
from vicinal.utils.threads import thread_pool

SHARPNESS_SIDE = 512  # longer side in pixels at which sharpness is measured, so that large images compare with small
THUMBNAIL_SIDE = 32
MAX_DEVIATION = 3.5  # of the modified z-score, as Iglewicz and Hoaglin recommend
MIN_SCALE = 0.1  # of logarithms: values within some 40 % of the median are never unusual
MAD_TO_DEVIATION = 1.4826  # the median absolute deviation times this is the standard deviation of a normal distribution
MIN_SHARPNESS = 0.1  # is added, so that the logarithm exists
MIN_ENTROPY = 3.0  # bits; photographs have 6 to 8
COLUMNS = ("width", "height", "aspect_ratio", "sharpness", "entropy")


@dataclass(frozen=True, eq=False)
class ImageFacts:
    """Facts about the images of a table.

    Attributes:
        frame: one row per row of the table:

            - `row`: that row.
            - `width`, `height`: in pixels, upright, of the part within the bounding box, if there is one.
            - `aspect_ratio`: width by height.
            - `sharpness`: the variance of the Laplacian of the gray image, its longer side reduced to 512 pixels
              (Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", ICPR 2000); low if blurred.
            - `entropy`: of the histogram of gray values, in bits, from 0 (one value) to 8.
            - `error`: what is wrong with a file that cannot be read, else an empty text; the others are then NaN.
        thumbnails: uint8 [rows, 32, 32], gray, not in proportion; black without an image.
    """

    frame: pd.DataFrame
    thumbnails: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

    @property
    def broken(self) -> pd.DataFrame:
        """The images that cannot be read, with the columns `row` and `error`."""
        return self.frame.loc[self.frame["error"] != "", ["row", "error"]].reset_index(drop=True)

    @property
    def blurred(self) -> pd.DataFrame:
        """Images that are much less sharp than the others, the least sharp first.

        Columns are `row` and `sharpness`. The logarithm of their sharpness is further below the median than 3.5 robust
        standard deviations, see :func:`modified_z_scores`. Images of smooth objects count as blurred; those of one
        color do not, since they have nothing that could be sharp (see `uninformative`).
        """
        sharpness = self.frame["sharpness"].where(self.frame["entropy"] >= MIN_ENTROPY)
        is_blurred = modified_z_scores((sharpness + MIN_SHARPNESS).apply(np.log)) < -MAX_DEVIATION
        found = self.frame.loc[is_blurred, ["row", "sharpness"]]
        return found.sort_values("sharpness", kind="stable", ignore_index=True)

    @property
    def uninformative(self) -> pd.DataFrame:
        """Images of few gray values, such as blank ones, glyphs and logos, the lowest entropy first.

        Columns are `row` and `entropy`. Their entropy is below 3 bits.
        """
        found = self.frame.loc[self.frame["entropy"] < MIN_ENTROPY, ["row", "entropy"]]
        return found.sort_values("entropy", kind="stable", ignore_index=True)

    @property
    def odd_sizes(self) -> pd.DataFrame:
        """Images of an unusual size or shape, the smallest first.

        Columns are `row`, `width`, `height` and `aspect_ratio`. The logarithm of their area or aspect ratio is further
        from the median than 3.5 robust standard deviations.
        """
        area = self.frame["width"] * self.frame["height"]
        odd = np.abs(modified_z_scores(area.apply(np.log))) > MAX_DEVIATION
        odd |= np.abs(modified_z_scores(self.frame["aspect_ratio"].apply(np.log))) > MAX_DEVIATION
        found = self.frame.loc[odd, ["row", "width", "height", "aspect_ratio"]].astype({"width": int, "height": int})
        order = np.argsort(area[odd].to_numpy(), kind="stable")
        return found.iloc[order].reset_index(drop=True)


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
    values = np.full((len(table), len(COLUMNS)), np.nan)
    errors = [""] * len(table)
    with thread_pool() as pool:
        found = pool.map(_measured, paths, boxes)
        for row, each in enumerate(track(found, "reading images", len(table), sys.stderr.isatty())):
            if isinstance(each, str):
                errors[row] = each
            else:
                values[row], thumbnails[row] = each
    frame = pd.DataFrame(values, columns=list(COLUMNS))
    frame.insert(0, "row", np.arange(len(table)))
    return ImageFacts(frame.assign(error=errors), thumbnails)


def _measured(path: str, box: Box | None) -> tuple[Doubles, Floats] | str:
    """The numbers of COLUMNS and the thumbnail of an image, or what is wrong with its file."""
    try:
        with open_image(path, channels=1) as opened:
            size = opened.size
            reduction = max(size) / SHARPNESS_SIDE if box is None else 1.0
            gray = crop_to_box(decoded(opened, max_reduction=max(reduction, 1.0)), box, path)
    except InputError as error:
        return str(error)
    width, height = size if box is None else gray.size
    gray.thumbnail((SHARPNESS_SIDE, SHARPNESS_SIDE), Image.Resampling.BOX)
    sharpness = float(laplace(np.asarray(gray, dtype=np.float32)).var())
    numbers = np.array([width, height, width / height, sharpness, gray.entropy() + 0.0])  # not -0
    return numbers, np.asarray(gray.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX))


def modified_z_scores(values: pd.Series) -> pd.Series:
    """How far each value is from the median, in robust standard deviations: 1.4826 times the median deviation.

    The standard deviation is taken to be at least 0.1, so that values are not unusual only because most are equal. NaN
    stays NaN, which no comparison finds unusual.

    Reference: Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993, who recommend a limit of 3.5.

    Example:
        >>> modified_z_scores(pd.Series([1.0, 2.0, 3.0, 4.0, 50.0])).round(1).tolist()
        [-1.3, -0.7, 0.0, 0.7, 31.7]
    """
    distances = values - values.median()
    return distances / max(MAD_TO_DEVIATION * float(distances.abs().median()), MIN_SCALE)
