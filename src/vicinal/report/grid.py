"""Pictures of a metric over one setting, with error bars, or over two settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vicinal.report.drawing import COLORS, DPI, INK, PALE, tidy, write_figure
from vicinal.utils.errors import InputError

LOG_RANGE = 20  # numbers that far apart are drawn on a logarithmic axis


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
