"""Pictures for people: queries with their neighbours, and how training went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from vicinal.data.images import read_image
from vicinal.errors import InputError
from vicinal.report.drawing import DPI, EMPTY, INK, PALE, QUERY, RIGHT, UNKNOWN, WRONG, tidy, write_figure

CELL_INCHES, THUMBNAIL = 1.15, 256  # size of an image on the page; its longer side in pixels
IMAGE, GAP, LINE = 1.0, 0.16, 0.17  # in cells: an image, the space beside it, a line of text
LABEL_CHARACTERS = 15
MOST_ROWS = 50  # of a grid; more would make a picture that few programs open

Item = Mapping[str, Any]


def neighbor_grid(
    queries: Sequence[Item],
    neighbors: Sequence[Sequence[Item]],
    out_path: str | Path,
    title: str | None = None,
) -> None:
    """Draw each query with its neighbours in a row: green frame for the same label, red for another, grey for unknown.

    Labels are compared as text, so that the class 5 of a benchmark is that of a folder `5`. Of more than 50 queries the
    first 50 are drawn, and the title says so.

    Args:
        queries: a row each: `path` (a file, or a PIL image; where it is unknown, a grey field stands for the image)
            and `label` (both None, NaN or absent where unknown).
        neighbors: for each query its neighbours, best first: `path`, `label` and `score`.
        out_path: the picture; its suffix says the format (png, jpg, webp, pdf, svg).
        title: a line above the picture.

    Raises:
        InputError: no queries, other numbers of queries and lists, an image that cannot be read, an unknown suffix, or
            a picture larger than its format can be.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     neighbor_grid([{"path": red, "label": "red"}], [[{"path": blue, "label": "blue", "score": 0.5}]],
        ...                   f"{folder}/grid.png")
        ...     Image.open(f"{folder}/grid.png").format
        'PNG'
    """
    if not queries or len(queries) != len(neighbors):
        raise InputError(f"{len(queries)} queries and {len(neighbors)} lists of neighbours; give one list a query")
    if len(queries) > MOST_ROWS:
        title = " - ".join(filter(None, [title, f"the first {MOST_ROWS} of {len(queries):,} queries"]))
        queries, neighbors = queries[:MOST_ROWS], neighbors[:MOST_ROWS]
    figure, axes = _canvas(len(queries), 1 + max(len(row) for row in neighbors), title)
    step = IMAGE + 2 * LINE + GAP
    for row, (query, found) in enumerate(zip(queries, neighbors, strict=True)):
        _cell(axes, query, 0.0, row * step, QUERY, "query")
        for rank, item in enumerate(found, 1):
            color, mark = _verdict(query.get("label"), item.get("label"))
            _cell(axes, item, rank * (IMAGE + GAP) + GAP, row * step, color, f"{item['score']:.2f}{mark}")
    write_figure(figure, Path(out_path))


def learning_curves(log: pd.DataFrame, metrics: pd.DataFrame, out_path: str | Path) -> None:
    """Draw the training loss and the validation recall over the steps.

    Args:
        log: columns `step` and `loss`.
        metrics: columns `step` and `recall@...`, a line each; may have no rows.
        out_path: the picture; its suffix says the format.

    Raises:
        InputError: a column is missing, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> log = pd.DataFrame({"step": [1, 2, 3], "loss": [3.0, 2.0, 1.5]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     learning_curves(log, pd.DataFrame({"step": [3], "recall@1": [0.5]}), f"{folder}/curves.png")
    """
    _require(log, ("step", "loss"), "log")
    recalls = [column for column in metrics.columns if str(column).startswith("recall@")]
    if len(metrics):
        _require(metrics, ("step",), "metrics")
    figure = Figure(figsize=(7.5, 5.2 if recalls else 3.0), dpi=DPI, layout="constrained")
    panels = figure.subplots(2 if recalls else 1, 1, sharex=True, squeeze=False)[:, 0]
    _loss_panel(panels[0], log)
    if recalls:
        _recall_panel(panels[1], metrics, recalls)
    panels[-1].set_xlabel("step", color=INK)
    write_figure(figure, Path(out_path))


def _canvas(rows: int, columns: int, title: str | None) -> tuple[Figure, Axes]:
    """A figure whose one pair of axes counts in cells, downward."""
    width = columns * (IMAGE + GAP) + 2 * GAP
    top = -2.6 * LINE if title else -GAP
    bottom = rows * (IMAGE + 2 * LINE + GAP)
    figure = Figure(figsize=(width * CELL_INCHES, (bottom - top) * CELL_INCHES), dpi=DPI)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(-GAP, width - GAP)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()
    if title:
        axes.text(0, top + LINE, title, va="center", fontsize=11, fontweight="bold", color=INK)
    return figure, axes


def _cell(axes: Axes, item: Item, left: float, top: float, color: str, caption: str) -> None:
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
    label = _short(item.get("label"))
    axes.text(middle, top + IMAGE + 1.7 * LINE, label, ha="center", va="center", fontsize=7.5, color=PALE)


def _thumbnail(image: str | Path | Image.Image) -> Image.Image:
    picture = image if isinstance(image, Image.Image) else read_image(image)
    picture = picture.convert("RGB")
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    return picture


def _verdict(wanted: object, found: object) -> tuple[str, str]:
    """Color and mark of a neighbour; the mark is for those who cannot tell green from red."""
    if _is_unknown(wanted) or _is_unknown(found):
        return UNKNOWN, ""
    return (RIGHT, " ✓") if str(wanted) == str(found) else (WRONG, " ✗")


def _is_unknown(value: object) -> bool:
    return value is None or value is pd.NA or value != value  # the last is NaN, as tables have it


def _short(label: object) -> str:
    """The label, its end kept where it is too long: nested classes differ there."""
    text = "" if _is_unknown(label) else str(label)
    text = text if len(text) <= LABEL_CHARACTERS else "…" + text[1 - LABEL_CHARACTERS :]
    return text.replace("$", r"\$")


def _loss_panel(axes: Axes, log: pd.DataFrame) -> None:
    smooth = log["loss"].rolling(max(len(log) // 20, 1), center=True, min_periods=1).mean()
    axes.plot(log["step"], log["loss"], color="#3b6fb6", alpha=0.3, linewidth=0.8)
    axes.plot(log["step"], smooth, color="#3b6fb6", linewidth=1.8)
    tidy(axes, "training loss")


def _recall_panel(axes: Axes, metrics: pd.DataFrame, recalls: Sequence[str]) -> None:
    for number, column in enumerate(recalls):
        color = ("#1a7f4b", "#5aa469", "#8fbf7f", "#b8d59f")[min(number, 3)]
        axes.plot(metrics["step"], 100 * metrics[column], color=color, marker="o", markersize=3.5, label=column)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    tidy(axes, "validation recall (%)")


def _require(frame: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    for column in columns:
        if column not in frame:
            raise InputError(f"{name} has no column {column!r}; its columns are {', '.join(map(str, frame.columns))}")
