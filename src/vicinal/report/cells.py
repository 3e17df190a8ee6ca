"""Images in frames, laid out in cells: what the pictures of queries and their neighbours are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from vicinal.data.images import read_image
from vicinal.report.drawing import DPI, EMPTY, INK, PALE, RIGHT, UNKNOWN, WRONG

CELL_INCHES, THUMBNAIL = 1.15, 256  # size of an image on the page; its longer side in pixels
IMAGE, GAP, LINE = 1.0, 0.16, 0.17  # in cells: an image, the space beside it, a line of text
LABEL_CHARACTERS = 15

Item = Mapping[str, Any]
"""An image: its `path` (a file, or a PIL image) and `label`; either may be None, NaN or absent where unknown."""


def canvas(rows: int, columns: float, title: str | None = None, lines: int = 2) -> tuple[Figure, Axes]:
    """A figure whose one pair of axes counts in cells, downward; below each row of images are lines of text."""
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
    """One image in its frame, the caption and the label below it."""
    unknown = _is_unknown(item.get("path"))
    image = Image.new("RGB", (1, 1), EMPTY) if unknown else _thumbnail(item["path"])
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
    label = short(item.get("label"))
    axes.text(middle, top + IMAGE + 1.7 * LINE, label, ha="center", va="center", fontsize=7.5, color=PALE)


def _thumbnail(image: str | Path | Image.Image) -> Image.Image:
    picture = image if isinstance(image, Image.Image) else read_image(image)
    picture = picture.convert("RGB")
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    return picture


def verdict(wanted: object, found: object) -> tuple[str, str]:
    """Color and mark of a neighbour; the mark is for those who cannot tell green from red."""
    if _is_unknown(wanted) or _is_unknown(found):
        return UNKNOWN, ""
    return (RIGHT, " ✓") if str(wanted) == str(found) else (WRONG, " ✗")


def _is_unknown(value: object) -> bool:
    return value is None or value is pd.NA or value != value  # the last is NaN, as tables have it


def short(label: object) -> str:
    """The label, its end kept where it is too long: nested classes differ there."""
    text = "" if _is_unknown(label) else str(label)
    text = text if len(text) <= LABEL_CHARACTERS else "…" + text[1 - LABEL_CHARACTERS :]
    return text.replace("$", r"\$")
