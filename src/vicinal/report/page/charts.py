"""Charts in SVG: lines and histograms, in the colors of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vicinal.report.page.markup import Markup, element, joined, render, table
from vicinal.utils.arrays import Doubles

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 66, WIDTH - 14, 10, HEIGHT - 44  # coordinates of the axes
MAX_POINTS, MAX_LISTED = 400, 20  # of a line: drawn, and in its table
DASHES = ("", "7 4", "2 3", "9 3 2 3")  # so that lines differ by more than their colors
NUM_COLORS = 6  # of the style sheet
MAX_VALUE = 1e300  # larger values are drawn here, because their range may be infinite


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
        name: for the legend.
        x: float64 [points].
        y: float64 [points].
        faint: whether it is pale and not in the legend.
        kept: the x of a point that is marked by a ring, and by an upright line over the whole chart.
        color: the number of its color and dashes; None: those that no other line has.
        thin: whether it is thinner than others.
    """

    name: str
    x: Doubles
    y: Doubles
    faint: bool = False
    kept: float | None = None
    color: int | None = None
    thin: bool = False


class Scale(NamedTuple):
    """A linear map from values, `low` to `high`, to coordinates, `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, values: Doubles) -> Doubles:
        return self.start + (np.asarray(values) - self.low) / (self.high - self.low) * (self.stop - self.start)


def ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Round numbers from `low` to `high`: steps of 1, 2 or 5 times a power of ten.

    Example:
        >>> ticks(0.0, 1.0)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / (max_ticks - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def thinned(x: Doubles, y: Doubles, max_points: int = MAX_POINTS) -> tuple[Doubles, Doubles]:
    """Choose points evenly, with the first and the last; points that are not finite are left out.

    Example:
        >>> thinned(np.arange(9.0), np.arange(9.0), max_points=3)[0]
        array([0., 4., 8.])
    """
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= max_points:
        return x, y
    chosen = np.unique(np.linspace(0, len(x) - 1, max_points).round().astype(np.int64))
    return x[chosen], y[chosen]


def line_chart(lines: Sequence[Line], x_name: str, y_name: str, description: str) -> Markup | None:
    """Lines over common axes; None if no point is finite.

    Args:
        lines: what to draw.
        x_name: the name of the x axis.
        y_name: the name of the y axis.
        description: of the chart, for screen readers.
    """
    drawn = [
        line._replace(x=_clipped(x), y=_clipped(y)) for line in lines for x, y in [thinned(line.x, line.y)] if len(x)
    ]
    if not drawn:
        return None
    x = _scale(np.concatenate([line.x for line in drawn]), LEFT, RIGHT, 0.0)
    y = _scale(np.concatenate([line.y for line in drawn]), BOTTOM, TOP, 0.04)
    names = [line.name for line in drawn if not line.faint]
    number = {name: at for at, name in enumerate(dict.fromkeys([*names, *(line.name for line in drawn)]))}
    number |= {line.name: line.color for line in drawn if line.color is not None}
    kept = sorted({line.kept for line in drawn if line.kept is not None and x.low <= line.kept <= x.high})
    shapes = joined(
        [
            *(_upright(float(x(np.array(each)))) for each in kept),
            *(_line(line, x, y, number[line.name]) for line in drawn),
            *(_ring(line, x, y, number[line.name]) for line in drawn),
        ]
    )
    thin = {line.name for line in drawn if line.thin}
    legend = {name: _line_swatch(number[name], name in thin) for name in names}
    return _chart(description, (x_name, _ticks(x)), (y_name, _ticks(y)), shapes, legend)


def histogram_chart(
    edges: Doubles, groups: Mapping[str, Doubles], x_name: str, y_name: str, description: str
) -> Markup:
    """Histograms over the same bins, one in front of the other; all but the first have dashed outlines.

    Args:
        edges: float64 [bins + 1].
        groups: name -> height of each bin, float64 [bins].
        x_name: the name of the x axis.
        y_name: the name of the y axis.
        description: of the chart, for screen readers.
    """
    x = Scale(float(edges[0]), float(edges[-1]), LEFT, RIGHT)
    highest = max(float(np.max(heights)) for heights in groups.values()) or 1.0
    y = Scale(0.0, 1.05 * highest, BOTTOM, TOP)
    are_counts = all((heights == np.rint(heights)).all() for heights in groups.values())
    y_ticks = [(text, place) for text, place in _ticks(y) if not are_counts or float(text) % 1 == 0]
    shapes = joined(_steps(edges, heights, x, y, number) for number, heights in enumerate(groups.values()))
    legend = {name: _area_swatch(number) for number, name in enumerate(groups)}
    return _chart(description, (x_name, _ticks(x)), (y_name, y_ticks), shapes, legend)


def bins_table(caption: str, x_name: str, edges: Doubles, groups: Mapping[str, Doubles], form: str) -> Markup:
    """The numbers of a histogram as a table, without empty bins.

    Args:
        caption: the text above it.
        x_name: the name of the column of bins.
        edges: float64 [bins + 1].
        groups: name -> height of each bin, float64 [bins].
        form: the format of the edges, such as `.2f`; `g` for bins of integers, which are named by their first and last.
    """
    last = 1 if form == "g" else 0
    lines = [
        [_bin(low, high - last, form), *(f"{height:,.4g}" for height in heights)]
        for low, high, *heights in zip(edges[:-1], edges[1:], *groups.values(), strict=True)
        if any(heights)
    ]
    return table(caption, [x_name, *groups], lines, range(1, len(groups) + 1))


def points_table(caption: str, lines: Sequence[Line], x_name: str, y_name: str) -> Markup:
    """Some points of each line that is not faint, as a table."""
    kept = [(line.name, *thinned(line.x, line.y, MAX_LISTED)) for line in lines if not line.faint]
    cells = [[name, f"{at:,g}", f"{value:.5g}"] for name, x, y in kept for at, value in zip(x, y, strict=True)]
    return table(caption, ["line", x_name, y_name], cells, (1, 2))


def _chart(
    description: str,
    x_axis: tuple[str, list[tuple[str, float]]],
    y_axis: tuple[str, list[tuple[str, float]]],
    shapes: Markup,
    legend: Mapping[str, Markup],
) -> Markup:
    """The chart; an axis is its name and its ticks, and the legend is left out if it has one entry."""
    sizes = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    names = {"x_name": x_axis[0], "x_ticks": x_axis[1], "y_name": y_axis[0], "y_ticks": y_axis[1]}
    return render("chart.html", description=description, shapes=shapes, legend=legend, **sizes, **names)


def _clipped(values: Doubles) -> Doubles:
    return np.clip(values, -MAX_VALUE, MAX_VALUE)


def _bin(low: float, high: float, form: str) -> str:
    return f"{low:{form}}" if high <= low else f"{low:{form}} to {high:{form}}"


def _scale(values: Doubles, start: float, stop: float, margin: float) -> Scale:
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9 * max(abs(low), 1e-9):
        half = abs(low) / 2 or 0.5
        low, high = low - half, high + half
    room = margin * (high - low)
    return Scale(low - room, high + room, start, stop)


def _ticks(scale: Scale) -> list[tuple[str, float]]:
    """The text and the coordinate of each tick."""
    values = ticks(scale.low, scale.high)
    return [(f"{value:g}", round(float(scale(np.array(value))), 1)) for value in values]


def _line(line: Line, x: Scale, y: Scale, number: int) -> Markup:
    if len(line.x) == 1:
        left, top = float(x(line.x)[0]), float(y(line.y)[0])
        return element("circle", cx=f"{left:.1f}", cy=f"{top:.1f}", r=3, class_=f"dot color{number % NUM_COLORS}")
    kind = f"line color{number % NUM_COLORS}" + (" faint" if line.faint else " thin" if line.thin else "")
    dash = None if line.faint else _dash(number)
    return element("path", d=f"M{_points(x(line.x), y(line.y))}", class_=kind, stroke_dasharray=dash)


def _upright(x: float) -> Markup:
    return element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP, y2=BOTTOM, class_="kept")


def _ring(line: Line, x: Scale, y: Scale, number: int) -> Markup | None:
    """The mark of the kept point; None if there is none, or it was thinned out."""
    at = np.flatnonzero(line.x == (np.nan if line.kept is None else line.kept))
    if not len(at):
        return None
    left, top = float(x(line.x[at[0]])), float(y(line.y[at[0]]))
    return element("circle", cx=f"{left:.1f}", cy=f"{top:.1f}", r=5, class_=f"ring at color{number % NUM_COLORS}")


def _steps(edges: Doubles, heights: Doubles, x: Scale, y: Scale, number: int) -> Markup:
    sides, tops = np.repeat(x(edges), 2), np.concatenate([[y.start], np.repeat(y(heights), 2), [y.start]])
    return element("path", d=f"M{_points(sides, tops)}Z", class_=f"area color{number}", stroke_dasharray=_dash(number))


def _points(x: Doubles, y: Doubles) -> str:
    return " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x, y, strict=True))


def _dash(number: int) -> str | None:
    return DASHES[(number + number // NUM_COLORS) % len(DASHES)] or None


def _line_swatch(number: int, thin: bool) -> Markup:
    kind = f"line color{number % NUM_COLORS}" + (" thin" if thin else "")
    return element("line", x1=0, x2=28, y1=5, y2=5, class_=kind, stroke_dasharray=_dash(number))


def _area_swatch(number: int) -> Markup:
    kind = f"area color{number}"
    return element("rect", x=1, y=1, width=26, height=8, class_=kind, stroke_dasharray=_dash(number))
