"""Grids of images: queries with their neighbors, on as many sheets as they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from vicinal.data.columns import Box
from vicinal.data.images.decoding import crop_to_box, read_image
from vicinal.report.drawing import COLORS, DPI, EMPTY, INK, PALE, QUERY, RIGHT, UNKNOWN, WRONG, tidy, write_figure
from vicinal.utils.console import shorten
from vicinal.utils.errors import InputError

CELL_INCHES, MAX_SIDE = 1.15, 256  # size of a cell; the longer side of an image, in pixels
IMAGE, GAP, LINE = 1.0, 0.16, 0.17  # in cells: an image, the space beside it, a line of text
MAX_LABEL_LENGTH = 18

Item = Mapping[str, Any]
"""An image: its `path` (a file, or a PIL image), `label`, `box` and `caption`; None, NaN or absent if unknown."""
LOG_RANGE = 20  # numbers that far apart are drawn on a logarithmic axis
MAX_ROWS = 20  # of cells on a sheet
MAX_COLUMNS = 10  # of neighbors; further ones are on the next row
MAX_SHEETS = 50


def canvas(rows: int, columns: float, title: str | None = None, lines: int = 2) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, whose unit is the cell and whose y axis points down."""
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
    r"""A label in at most 18 characters, with dollars as matplotlib wants them."""
    text = "" if _is_unknown(label) else str(label)
    return shorten(text, MAX_LABEL_LENGTH).replace("$", r"\$")


def draw_grid(frame: pd.DataFrame, keys: Sequence[str], metric: str, path: str | Path) -> None:
    """Draw a metric over one setting as a line with error bars, or over two settings as a heat map.

    Args:
        frame: one row per combination: the settings, the mean of the metric from 0 to 1, and, as `recall@1 std`, its
            standard deviation; both may be NaN.
        keys: the columns of the settings, one or two.
        metric: the column of the metric.
        path: the picture; its suffix is the format.

    Raises:
        InputError: more settings than two, or an unknown suffix.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> frame = pd.DataFrame({"dim": [64, 128], "recall@1": [0.5, 0.6], "recall@1 std": [0.01, 0.02]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     draw_grid(frame, ["dim"], "recall@1", f"{folder}/sweep.png")
    """
    if len(keys) not in (1, 2):
        raise InputError(f"{len(keys)} settings; a picture has one or two")
    figure = Figure(figsize=(6.4, 4.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    _draw_line(axes, frame, keys[0], metric) if len(keys) == 1 else _draw_heat_map(axes, frame, keys, metric)
    write_figure(figure, Path(path))


def _draw_line(axes: Axes, frame: pd.DataFrame, key: str, metric: str) -> None:
    means, deviations = 100 * frame[metric], 100 * frame[f"{metric} std"]
    numbers = pd.api.types.is_numeric_dtype(frame[key]) and not pd.api.types.is_bool_dtype(frame[key])
    order = np.argsort(frame[key].to_numpy()) if numbers else np.arange(len(frame))
    places = frame[key].to_numpy(dtype=float) if numbers else np.arange(len(frame))
    axes.errorbar(
        places[order], means.to_numpy()[order], yerr=deviations.fillna(0.0).to_numpy()[order], marker="o", markersize=5,
        capsize=4, linewidth=1.6 if numbers else 0, elinewidth=1.2, color=COLORS[0],
    )  # fmt: skip
    if numbers and places.min() > 0 and places.max() >= LOG_RANGE * places.min():
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{value:g}" for value in places])
        axes.minorticks_off()
    if not numbers:
        axes.set_xticks(places, [str(value) for value in frame[key]])
    axes.set_xlabel(key, color=INK)
    tidy(axes, f"{metric} (%)")


def _draw_heat_map(axes: Axes, frame: pd.DataFrame, keys: Sequence[str], metric: str) -> None:
    across, down = keys[1], keys[0]
    columns, rows = list(dict.fromkeys(frame[across])), list(dict.fromkeys(frame[down]))
    values, texts = np.full((len(rows), len(columns)), np.nan), {}
    for row in frame.to_dict("records"):
        place = rows.index(row[down]), columns.index(row[across])
        values[place] = 100 * row[metric]
        deviation = row[f"{metric} std"]
        texts[place] = f"{values[place]:.2f}" + ("" if np.isnan(deviation) else f"\n± {100 * deviation:.2f}")
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    low, high = np.nanmin(values), np.nanmax(values)
    for (y, x), text in texts.items():
        if not np.isnan(values[y, x]):
            is_dark = values[y, x] < (low + high) / 2
            axes.text(x, y, text, ha="center", va="center", fontsize=9, color="white" if is_dark else "black")
    axes.set_xticks(range(len(columns)), [str(each) for each in columns])
    axes.set_yticks(range(len(rows)), [str(each) for each in rows])
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(down, color=INK)
    axes.tick_params(colors=PALE, labelsize=9, length=0)
    axes.spines[:].set_visible(False)
    colorbar = axes.figure.colorbar(image, ax=axes)
    colorbar.set_label(f"{metric} (%)", color=INK)
    colorbar.outline.set_visible(False)


def neighbor_grid(
    queries: Sequence[Item], neighbors: Sequence[Sequence[Item]], path: str | Path, title: str | None = None
) -> list[Path]:
    """Draw each query in a row with its neighbors: green frame for the same label, red for another, gray if unknown.

    More than ten neighbors go on in the next row. Rows beyond the 20 of a sheet are on further sheets, called
    `found_2.png`, `found_3.png` and so on if `path` is `found.png`, each with the numbers of its queries in the title.
    There are at most 50 sheets; if queries are left out, the title of the last one says so. Labels are compared as
    text, so that class 5 of a benchmark equals a folder named `5`.

    Args:
        queries: for each query its `path` (a file, or a PIL image; if it is unknown, a gray field is drawn), its
            `label` (if it is unknown, the name of the file is written), its `box` (the left, top, right and bottom
            edge of the part that is shown) and a `caption` below the label; all are None, NaN or absent if they are
            unknown.
        neighbors: for each query its neighbors, best first: the same and `score`.
        path: the picture; its suffix is the format (png, jpg, webp, pdf, svg).
        title: a line above the picture.

    Returns:
        The paths of the sheets.

    Raises:
        InputError: no queries, different numbers of queries and lists, an image that cannot be read, an unknown suffix,
            or a picture that is too large for its format.
        OSError: the picture cannot be written.

    Example:
        >>> import tempfile
        >>> red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     matches = [{"path": blue, "label": "blue", "score": 0.5}]
        ...     sheets = neighbor_grid([{"path": red, "label": "red"}], [matches], f"{folder}/grid.png")
        ...     [sheet.name for sheet in sheets], Image.open(sheets[0]).format
        (['grid.png'], 'PNG')
    """
    if not queries or len(queries) != len(neighbors):
        raise InputError(f"{len(queries)} queries and {len(neighbors)} lists of neighbors; give one list per query")
    path, ranges = Path(path), _sheets([_num_rows(found) for found in neighbors])
    drawn = ranges[:MAX_SHEETS]
    names = [path if not number else path.with_stem(f"{path.stem}_{number + 1}") for number in range(len(drawn))]
    for name, (start, stop) in zip(names, drawn, strict=True):
        numbers = None
        if len(ranges) > 1:
            numbers = f"queries {start + 1:,} to {stop:,} of {len(queries):,}"
        if len(ranges) > len(drawn) and name == names[-1]:
            numbers = f"{numbers}; the others are left out"
        heading = " - ".join(filter(None, [title, numbers])) or None
        _draw_sheet(queries[start:stop], neighbors[start:stop], name, heading)
    return names


def _num_rows(neighbors: Sequence[Item]) -> int:
    return max(1, -(-len(neighbors) // MAX_COLUMNS))


def _sheets(num_rows: Sequence[int]) -> list[tuple[int, int]]:
    starts, height = [0], 0
    for query, rows in enumerate(num_rows):
        if height and height + rows > MAX_ROWS:
            starts.append(query)
            height = 0
        height += rows
    return list(zip(starts, [*starts[1:], len(num_rows)], strict=True))


def _draw_sheet(queries: Sequence[Item], neighbors: Sequence[Sequence[Item]], path: Path, title: str | None) -> None:
    has_captions = any(item.get("caption") for items in (queries, *neighbors) for item in items)
    lines = 3 if has_captions else 2
    columns = min(MAX_COLUMNS, max(len(row) for row in neighbors))
    figure, axes = canvas(sum(map(_num_rows, neighbors)), 1 + columns, title, lines)
    step, row = IMAGE + lines * LINE + GAP, 0
    for query, found in zip(queries, neighbors, strict=True):
        cell(axes, query, 0.0, row * step, QUERY, "query")
        for rank, item in enumerate(found):
            down, across = divmod(rank, MAX_COLUMNS)
            color, mark = verdict(query.get("label"), item.get("label"))
            left = (across + 1) * (IMAGE + GAP) + GAP
            cell(axes, item, left, (row + down) * step, color, f"{item['score']:.2f}{mark}")
        row += _num_rows(found)
    write_figure(figure, path)
