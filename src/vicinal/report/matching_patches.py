"""Pictures of matching patches: lines between two images, which say why they match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from PIL import Image

from vicinal.data.columns import Box
from vicinal.data.images.colors import convert_image
from vicinal.data.images.decoding import crop_to_box, read_image
from vicinal.data.images.image_ops import without_normalization
from vicinal.data.images.transforms import ImageTransform
from vicinal.report.drawing import DPI, INK, PALE, write_figure
from vicinal.retrieval.reranking.local import PatchMatches
from vicinal.utils.console import shorten
from vicinal.utils.errors import InputError

MAX_PAIRS = 30  # in one picture
MAX_CAPTION = 40  # characters
SIDE, SPACE = 2.4, 0.3  # inches: an image, the space beside it


@dataclass(frozen=True)
class MatchedPair:
    """Two images and their matching patches.

    Args:
        query: a file, or a PIL image.
        image: the same.
        matches: the patches, from :meth:`LocalReranking.matches <vicinal.retrieval.LocalReranking.matches>`.
        caption: a line below.
        query_box: left, top, right and bottom of the part that is the query; None: all.
        box: the same of the image.
    """

    query: str | Path | Image.Image
    image: str | Path | Image.Image
    matches: PatchMatches
    caption: str = ""
    query_box: Box | None = None
    box: Box | None = None


def draw_matching_patches(pairs: Sequence[MatchedPair], transform: ImageTransform, path: str | Path) -> None:
    """Draw pairs of images side by side, with a line between each two matching patches; the more similar, the darker.

    Args:
        pairs: at most 30 are drawn.
        transform: of the images whose patches match, which gives the squares that are drawn; see
            `patch_transform` of `vicinal.models.feature_maps`.
        path: the picture; its suffix is the format.

    Raises:
        InputError: no pairs, an image that cannot be read, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> gray, point = Image.new("RGB", (8, 8), "gray"), np.array([[0.5, 0.5]])
        >>> matches = PatchMatches(point, point, np.ones(1, np.float32), grid=(1, 1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     draw_matching_patches([MatchedPair(gray, gray, matches)], ImageTransform(size=8), f"{folder}/m.png")
    """
    if not pairs:
        raise InputError("there are no matches to draw")
    drawn = pairs[:MAX_PAIRS]
    figure = Figure(figsize=(2 * SIDE + 3 * SPACE, len(drawn) * (SIDE + 2 * SPACE)), dpi=DPI)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(-SPACE, 2 * SIDE + 2 * SPACE)
    axes.set_ylim(len(drawn) * (SIDE + 2 * SPACE), 0)
    for number, pair in enumerate(drawn):
        _draw(axes, pair, transform, number * (SIDE + 2 * SPACE) + SPACE / 2)
    write_figure(figure, Path(path))


def _draw(axes: Axes, pair: MatchedPair, transform: ImageTransform, top: float) -> None:
    corners = np.array([0.0, top]), np.array([SIDE + SPACE, top])
    for (left, _), picture, box in zip(corners, (pair.query, pair.image), (pair.query_box, pair.box), strict=True):
        square = _square(picture, box, transform)
        axes.imshow(square, extent=(left, left + SIDE, top + SIDE, top), cmap="gray", aspect="auto", zorder=1)
    ends = corners[0] + SIDE * pair.matches.query_points, corners[1] + SIDE * pair.matches.points
    lines = LineCollection(list(np.stack(ends, axis=1)), linewidths=1.1, zorder=2)
    lines.set_color("#e4572e")
    if len(pair.matches):  # matplotlib refuses an empty array
        lines.set_alpha(0.25 + 0.65 * np.clip(pair.matches.similarities.astype(float), 0, 1))
        axes.add_collection(lines)
    x, y = np.concatenate(ends).T
    axes.scatter(x, y, s=7, color="#e4572e", linewidths=0, zorder=3)  # lines may lie on each other
    number, caption = len(pair.matches), shorten(pair.caption, MAX_CAPTION).replace("$", r"\$")
    said = f"{number} matching patch{'' if number == 1 else 'es'}" if number else "no patch in common"
    axes.text(0, top + SIDE + 0.5 * SPACE, said, va="center", fontsize=8, color=INK)
    axes.text(SIDE + SPACE, top + SIDE + 0.5 * SPACE, caption, va="center", fontsize=8, color=PALE)


def _square(image: str | Path | Image.Image, box: Box | None, transform: ImageTransform) -> Any:
    """The part of an image that is divided into patches, uint8 [H, W, 3] or [H, W]."""
    picture = image if isinstance(image, Image.Image) else read_image(image)
    cut = convert_image(crop_to_box(picture, box, image), transform.channels)
    pixels = without_normalization(transform.test())(cut).numpy()
    return pixels[0] if transform.channels == 1 else pixels.transpose(1, 2, 0)
