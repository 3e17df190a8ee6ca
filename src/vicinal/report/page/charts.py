"""Charts as SVG within a page: lines and histograms, in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.report.page.markup import Markup, element, joined, table

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 10, 44  # of the axes
MOST_POINTS, MOST_LISTED = 400, 20  # of a line: drawn, and in its table
DASHES = ("", "7 4", "2 3", "9 3 2 3")  # lines are told apart by these too
COLORS = 6  # that the style sheet has
LARGEST = 1e300  # what is beyond is drawn here: of larger values the spread may be infinite

Floats = npt.NDArray[np.float64]


class Line(NamedTuple):
    """A line of a chart; `faint` lines stand behind others and in no legend."""

    name: str
    x: Floats
    y: Floats
    faint: bool = False


class Scale(NamedTuple):
    """From values to places in the picture."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, values: Floats) -> Floats:
        return self.start + (np.asarray(values) - self.low) / (self.high - self.low) * (self.stop - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`: steps of 1, 2 or 5 times a power of ten.

    Example:
        >>> ticks(0.0, 1.0)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def thinned(x: Floats, y: Floats, most: int = MOST_POINTS) -> tuple[Floats, Floats]:
    """At most so many points, evenly chosen, the last one with them; those that are not finite are left out.

    Example:
        >>> thinned(np.arange(9.0), np.arange(9.0), most=3)[0]
        array([0., 4., 8.])
    """
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= most:
        return x, y
    chosen = np.unique(np.linspace(0, len(x) - 1, most).round().astype(np.int64))
    return x[chosen], y[chosen]


def line_chart(lines: Sequence[Line], x_name: str, y_name: str, description: str) -> Markup | None:
    """Lines over common axes; None where no point is finite.

    Args:
        lines: one or more.
        x_name: below the axis.
        y_name: beside it.
        description: what is to be seen, for those who do not see it.
    """
    drawn = [
        line._replace(x=_drawable(x), y=_drawable(y)) for line in lines for x, y in [thinned(line.x, line.y)] if len(x)
    ]
    if not drawn:
        return None
    x = _scale(np.concatenate([line.x for line in drawn]), LEFT, WIDTH - RIGHT, 0.0)
    y = _scale(np.concatenate([line.y for line in drawn]), HEIGHT - BOTTOM, TOP, 0.04)
    named = [line.name for line in drawn if not line.faint]
    number = {name: at for at, name in enumerate(dict.fromkeys([*named, *(line.name for line in drawn)]))}
    paths = [_line(line, x, y, number[line.name]) for line in drawn]
    legend = _legend({name: _line_swatch(number[name]) for name in named}) if len(named) > 1 else None
    return joined([_picture(description, _axes(x, y, x_name, y_name), *paths), legend])


def histogram_chart(edges: Floats, groups: Mapping[str, Floats], x_name: str, y_name: str, description: str) -> Markup:
    """Groups of values in the same bins, one before the other; each filled, its outline dashed but for the first.

    Args:
        edges: float64 [bins + 1].
        groups: name -> height of each bin, float64 [bins].
        x_name: below the axis.
        y_name: beside it.
        description: what is to be seen, for those who do not see it.
    """
    x = Scale(float(edges[0]), float(edges[-1]), LEFT, WIDTH - RIGHT)
    highest = max(float(np.max(heights)) for heights in groups.values()) or 1.0
    y = Scale(0.0, 1.05 * highest, HEIGHT - BOTTOM, TOP)
    whole = all((heights == np.rint(heights)).all() for heights in groups.values())
    paths = [_steps(edges, heights, x, y, number) for number, heights in enumerate(groups.values())]
    legend = _legend({name: _area_swatch(number) for number, name in enumerate(groups)}) if len(groups) > 1 else None
    return joined([_picture(description, _axes(x, y, x_name, y_name, whole), *paths), legend])


def bins_table(caption: str, x_name: str, edges: Floats, groups: Mapping[str, Floats], form: str) -> Markup:
    """What a histogram draws, as a table; bins with nothing in them are left out.

    Args:
        caption: what it says.
        x_name: above the bins.
        edges: float64 [bins + 1].
        groups: name -> height of each bin, float64 [bins].
        form: of the edges, such as `.2f`; `g` for bins of whole numbers, whose last is named.
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
    kept = [(line.name, *thinned(line.x, line.y, MOST_LISTED)) for line in lines if not line.faint]
    cells = [[name, f"{at:,g}", f"{value:.5g}"] for name, x, y in kept for at, value in zip(x, y, strict=True)]
    return table(caption, ["line", x_name, y_name], cells, (1, 2))


def _drawable(values: Floats) -> Floats:
    return np.clip(values, -LARGEST, LARGEST)


def _bin(low: float, high: float, form: str) -> str:
    return f"{low:{form}}" if high <= low else f"{low:{form}} to {high:{form}}"


def _scale(values: Floats, start: float, stop: float, margin: float) -> Scale:
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9 * max(abs(low), 1e-9):
        half = abs(low) / 2 or 0.5
        low, high = low - half, high + half
    room = margin * (high - low)
    return Scale(low - room, high + room, start, stop)


def _picture(description: str, *content: object) -> Markup:
    box = f"0 0 {WIDTH} {HEIGHT}"
    return element("svg", *content, viewBox=box, role="img", aria_label=description, class_="chart")


def _axes(x: Scale, y: Scale, x_name: str, y_name: str, whole: bool = False) -> Markup:
    """Ticks, grid and names; `whole` for counts, which have no ticks between whole numbers."""
    bottom, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    parts: list[Markup] = []
    for value, place in _placed(y):
        if whole and value % 1:
            continue
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=place, y2=place, class_="grid"))
        parts.append(element("text", f"{value:g}", x=LEFT - 6, y=place, class_="tick y"))
    for value, place in _placed(x):
        parts.append(element("line", x1=place, x2=place, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(element("text", f"{value:g}", x=place, y=bottom + 17, class_="tick x"))
    parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"))
    parts.append(element("text", x_name, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 6, class_="name"))
    parts.append(element("text", y_name, transform=f"translate(12 {middle:.1f}) rotate(-90)", class_="name"))
    return element("g", *parts, aria_hidden="true")


def _placed(scale: Scale) -> list[tuple[float, float]]:
    return [(value, round(float(scale(np.array(value))), 1)) for value in ticks(scale.low, scale.high)]


def _line(line: Line, x: Scale, y: Scale, number: int) -> Markup:
    places = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(x(line.x), y(line.y), strict=True))
    kind = f"line color{number % COLORS}" + (" faint" if line.faint else "")
    if len(line.x) == 1:
        left, top = float(x(line.x)[0]), float(y(line.y)[0])
        return element("circle", cx=f"{left:.1f}", cy=f"{top:.1f}", r=3, class_=f"dot color{number % COLORS}")
    return element("path", d=f"M{places}", class_=kind, stroke_dasharray=None if line.faint else _dash(number))


def _steps(edges: Floats, heights: Floats, x: Scale, y: Scale, number: int) -> Markup:
    sides, tops = np.repeat(x(edges), 2), np.concatenate([[y.start], np.repeat(y(heights), 2), [y.start]])
    places = " ".join(f"{left:.1f},{top:.1f}" for left, top in zip(sides, tops, strict=True))
    return element("path", d=f"M{places}Z", class_=f"area color{number}", stroke_dasharray=_dash(number))


def _dash(number: int) -> str | None:
    return DASHES[(number + number // COLORS) % len(DASHES)] or None


def _line_swatch(number: int) -> Markup:
    stroke = element(
        "line", x1=0, x2=28, y1=5, y2=5, class_=f"line color{number % COLORS}", stroke_dasharray=_dash(number)
    )
    return element("svg", stroke, viewBox="0 0 28 10", width=28, height=10, aria_hidden="true")


def _area_swatch(number: int) -> Markup:
    box = element("rect", x=1, y=1, width=26, height=8, class_=f"area color{number}", stroke_dasharray=_dash(number))
    return element("svg", box, viewBox="0 0 28 10", width=28, height=10, aria_hidden="true")


def _legend(swatches: Mapping[str, Markup]) -> Markup:
    return element("ul", *(element("li", swatch, name) for name, swatch in swatches.items()), class_="legend")
