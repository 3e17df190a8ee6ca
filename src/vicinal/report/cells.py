"""Images in frames, in the cells of a grid: the parts of pictures of queries and their neighbors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from vicinal.data.boxes import Box, crop_to_box
from vicinal.data.images.decoding import read_image
from vicinal.report.drawing import DPI, EMPTY, INK, PALE, RIGHT, UNKNOWN, WRONG
from vicinal.report.labels import shorten

CELL_INCHES, MAX_SIDE = 1.15, 256  # size of a cell; the longer side of an image, in pixels
IMAGE, GAP, LINE = 1.0, 0.16, 0.17  # in cells: an image, the space beside it, a line of text
MAX_LABEL_LENGTH = 18

Item = Mapping[str, Any]
"""An image: its `path` (a file, or a PIL image), `label`, `box` and `caption`; None, NaN or absent if unknown."""


def canvas(rows: int, columns: float, title: str | None = None, lines: int = 2) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, whose unit is the cell and whose y axis points down.

    Args:
        rows: of cells.
        columns: of cells.
        title: a line above them.
        lines: of text below each row of cells.
    """
    width = columns * (IMAGE + GAP) + 2 * GAP
    top = -2.6 * LINE if title else -GAP
    bottom = rows * (IMAGE + lines * LINE + GAP)
    figure = Figure(figsize=(width * CELL_INCHES, (bottom - top) * CELL_INCHES), dpi=DPI)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-GAP, width - GAP)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()
    if title:
        axes.text(0, top + LINE, title, va="center", fontsize=11, fontweight="bold", color=INK)
    return figure, axes


def cell(axes: Axes, item: Item, left: float, top: float, color: str, caption: str) -> None:
    """Draw an image in its frame, with the caption, its label and its own caption below it."""
    unknown = _is_unknown(item.get("path"))
    image = Image.new("RGB", (1, 1), EMPTY) if unknown else _thumbnail(item["path"], item.get("box"))
    width, height = (IMAGE * side / max(image.size) for side in image.size)
    x, y = left + (IMAGE - width) / 2, top + (IMAGE - height) / 2
    axes.imshow(image, extent=(x, x + width, y + height, y), interpolation="nearest", aspect="auto", zorder=1)
    frame = FancyBboxPatch((left, top), IMAGE, IMAGE, "round,pad=0.03,rounding_size=0.04")
    frame.set(facecolor="none", edgecolor=color, linewidth=2.6, zorder=2)
    axes.add_patch(frame)
    middle = left + IMAGE / 2
    axes.text(
        middle, top + IMAGE + 0.8 * LINE, caption, ha="center", va="center", fontsize=8, color=color, weight="bold"
    )
    for line, text in ((1.7, _name(item)), (2.6, item.get("caption"))):
        axes.text(middle, top + IMAGE + line * LINE, short(text), ha="center", va="center", fontsize=7.5, color=PALE)


def _name(item: Item) -> object:
    """The label, or else the name of the file."""
    path, label = item.get("path"), item.get("label")
    return Path(path).name if _is_unknown(label) and isinstance(path, str | Path) else label


def _thumbnail(image: str | Path | Image.Image, box: Box | None) -> Image.Image:
    picture = image if isinstance(image, Image.Image) else read_image(image)
    picture = crop_to_box(picture, box, image).convert("RGB")
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    return picture


def verdict(query_label: object, label: object) -> tuple[str, str]:
    """Color and mark of a neighbor; the mark is for readers who cannot tell green from red."""
    if _is_unknown(query_label) or _is_unknown(label):
        return UNKNOWN, ""
    return (RIGHT, " ✓") if str(query_label) == str(label) else (WRONG, " ✗")


def _is_unknown(value: object) -> bool:
    return value is None or value is pd.NA or value != value  # NaN differs from itself


def short(label: object) -> str:
    r"""A label in at most 18 characters, with dollars as matplotlib wants them.

    Example:
        >>> print(short("kitchen/cups/espresso"), short("5 $"))
        kitchen/…/espresso 5 \$
    """
    text = "" if _is_unknown(label) else str(label)
    return shorten(text, MAX_LABEL_LENGTH).replace("$", r"\$")
