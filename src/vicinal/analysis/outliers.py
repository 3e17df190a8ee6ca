"""Images that stand out: far from their class or of unusual pixels, and classes of unusual size."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pandas as pd
from PIL import Image

from vicinal.analysis.neighbors import QueryNeighbors
from vicinal.data.columns import Box, row_boxes
from vicinal.data.images.decoding import crop_to_box, decoded, open_image
from vicinal.data.table import Table
from vicinal.utils.console import track
from vicinal.utils.errors import InputError
from vicinal.utils.threads import thread_pool

MIN_FACTOR = 3.0  # of cosine distances, which are like squares of Euclidean ones
EPSILON = 1e-10  # is added to distances, since those of duplicates are 0
GRAY_SIDE = 512  # longer side in pixels at which an image is measured, so that large images compare with small
THUMBNAIL_SIDE = 32
MIN_ENTROPY = 3.0  # bits; photographs have 6 to 8


def outliers(neighbors: QueryNeighbors, min_factor: float = MIN_FACTOR) -> pd.DataFrame:
    """Find images whose local outlier factor is large: they lie in a much sparser region than their neighbors.

    Distances are 1 - cosine similarity. The reachability distance of an image from a neighbor is at least the distance
    of that neighbor to its own k-th neighbor; the local density is 1 over the mean reachability distance; the factor is
    the mean density of the neighbors over the image's own: about 1 in the midst of a cluster of any density.

    A group of more than k similar images is a cluster and not found, nor are images that the model maps into the midst
    of others, as a model that knows few kinds of images does.

    Reference: Breunig et al., "LOF: Identifying Density-Based Local Outliers", SIGMOD 2000, definitions 5 to 7.

    Args:
        neighbors: the nearest neighbors of each image among all others.
        min_factor: images with at least this local outlier factor are found.

    Returns:
        One row per outlier, the largest factor first: `row`, its row in the table; `outlier_factor`;
        `similarity`, that to its nearest neighbor.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> embeddings = np.array([[1, 0.0], [1, 0.1], [1, 0.2], [1, 0.3], [0, 1]])
        >>> table = Table(pd.DataFrame({"path": list("abcde")}))
        >>> outliers(query_neighbors(embeddings, table, k=2))["row"].tolist()
        [4]
    """
    positions = np.searchsorted(neighbors.queries, neighbors.ids)
    distances = (1 - neighbors.scores.astype(np.float64)).clip(min=0)
    reachability = np.maximum(distances, distances[positions, -1])
    densities = 1 / (reachability.mean(axis=1) + EPSILON)
    factors = densities[positions].mean(axis=1) / densities
    found = np.flatnonzero(factors >= min_factor)
    frame = pd.DataFrame(
        {
            "row": neighbors.queries[found],
            "outlier_factor": factors[found],
            "similarity": neighbors.scores[found, 0].astype(np.float64),
        }
    )
    return frame.sort_values("outlier_factor", ascending=False, kind="stable", ignore_index=True)


@dataclass(frozen=True, eq=False)
class ImageFacts:
    """Facts about the images of a table.

    Attributes:
        frame: one row per row of the table:

            - `row`: that row.
            - `entropy`: of the histogram of gray values within the bounding box, if there is one, in bits, from 0 (one
              value) to 8; NaN if the file cannot be read.
            - `error`: the reason why a file cannot be read, else an empty text.
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
        found = pool.map(_measure_image, paths, boxes)
        for row, each in enumerate(track(found, "reading images", len(table), sys.stderr.isatty())):
            if isinstance(each, str):
                errors[row] = each
            else:
                entropies[row], thumbnails[row] = each
    frame = pd.DataFrame({"row": np.arange(len(table)), "entropy": entropies, "error": errors})
    return ImageFacts(frame, thumbnails)


def _measure_image(path: str, box: Box | None) -> tuple[float, np.ndarray] | str:
    """The entropy and the thumbnail of an image, or the error of its file."""
    try:
        with open_image(path, channels=1) as opened:
            reduction = max(opened.size) / GRAY_SIDE if box is None else 1.0
            gray = crop_to_box(decoded(opened, max_reduction=max(reduction, 1.0)), box, path)
    except InputError as error:
        return str(error)
    gray.thumbnail((GRAY_SIDE, GRAY_SIDE), Image.Resampling.BOX)
    entropy = gray.entropy() + 0.0  # not -0
    return entropy, np.asarray(gray.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX))


def class_sizes(table: Table) -> pd.DataFrame:
    """Count the images of each class.

    Args:
        table: with labels.

    Returns:
        One row per class, the smallest first: `label`; `num_images`; and, in a table with splits, one column per split.

    Example:
        >>> class_sizes(Table(pd.DataFrame({"label": ["cat", "cat", "dog"], "split": ["train", "train", "test"]})))
          label  num_images  train  test
        0   dog           1      0     1
        1   cat           2      2     0
    """
    labels = table.frame["label"].to_numpy()
    sizes = pd.DataFrame({"label": table.classes, "num_images": table.class_counts})
    if table.splits:
        counts = pd.crosstab(labels, table.frame["split"].to_numpy())
        sizes = sizes.join(counts[table.splits].rename_axis(columns=None), on="label")
    return sizes.sort_values("num_images", kind="stable", ignore_index=True)
