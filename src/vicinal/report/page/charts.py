"""Charts of a page, drawn by matplotlib as SVG in the colors of the page's style sheet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vicinal.report.page.markup import Markup, element, table
from vicinal.utils.arrays import Doubles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (6.4, 3.4)  # of a chart
MAX_POINTS, MAX_LISTED = 400, 20  # of a line: drawn, and in its table
DASHES = ("-", "--", ":", "-.")  # so that lines differ by more than their colors
NUM_COLORS = 6  # of the style sheet
MAX_VALUE = 1e300  # larger values are drawn here, because their range may be infinite
INK, PALE, EDGE = "#00000a", "#00000b", "#00000c"  # stand for colors of the style sheet while matplotlib draws
VARIABLES = {INK: "ink", PALE: "pale", EDGE: "edge", **{f"#00000{at + 1}": f"color{at}" for at in range(NUM_COLORS)}}
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": PALE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": EDGE,
    "xtick.color": PALE,
    "ytick.color": PALE,
}


class Line(NamedTuple):
    """A line of a chart."""

    name: str
    x: Doubles
    y: Doubles
    faint: bool = False  # pale and not in the legend
    kept: float | None = None  # the x of a point that is marked by a ring and an upright line
    color: int | None = None  # the number of its color and dashes; None: those that no other line has
    thin: bool = False


@contextmanager
def style() -> Iterator[None]:
    """Within this context, matplotlib draws in the style of the page; its settings are restored after it."""
    import matplotlib

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        yield


def svg(figure: Figure, description: str) -> Markup:
    """A figure that was drawn in :func:`style`, as an element of the page, with a description for screen readers."""
    import matplotlib

    file = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": description}):  # ids of one page differ, and are always the same
        figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
    width, height = re.findall(r"[\d.]+", re.findall(r'viewBox="([^"]*)"', file.getvalue())[0])[2:]
    content = file.getvalue().partition("</metadata>")[2].removesuffix("</svg>\n")
    content = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", content, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', content))
    content = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", content)
    content = re.sub(r"font-family: [^;\"]*; ?", "", content)  # the font of the page applies
    for color, name in VARIABLES.items():
        content = content.replace(color, f"var(--{name})")
    return element(
        "svg", Markup(content), viewBox=f"0 0 {width} {height}", role="img", aria_label=description, class_="chart"
    )


def thinned(x: Doubles, y: Doubles, max_points: int = MAX_POINTS) -> tuple[Doubles, Doubles]:
    """Choose points evenly, with the first and the last; points that are not finite are left out."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= max_points:
        return x, y
    chosen = np.unique(np.linspace(0, len(x) - 1, max_points).round().astype(np.int64))
    return x[chosen], y[chosen]


def line_chart(lines: Sequence[Line], x_name: str, y_name: str, description: str) -> Markup | None:
    """Lines over common axes; None if no point is finite."""
    drawn = [line._replace(x=np.clip(x, -MAX_VALUE, MAX_VALUE), y=np.clip(y, -MAX_VALUE, MAX_VALUE))
             for line in lines for x, y in [thinned(line.x, line.y)] if len(x)]  # fmt: skip
    if not drawn:
        return None
    names = dict.fromkeys([*(line.name for line in drawn if not line.faint), *(line.name for line in drawn)])
    number = {name: at for at, name in enumerate(names)}
    number |= {line.name: line.color for line in drawn if line.color is not None}
    with style():
        figure = _figure(x_name, y_name)
        for line in drawn:
            _draw(figure, line, number[line.name])
        _add_legend(figure)
        return svg(figure, description)


def histogram_chart(
    edges: Doubles, groups: Mapping[str, Doubles], x_name: str, y_name: str, description: str
) -> Markup:
    """Histograms over the same bins, one in front of the other; all but the first have dashed outlines.

    `edges` is float64 [bins + 1], and each group has the heights of the bins, float64 [bins].
    """
    from matplotlib.colors import to_rgba
    from matplotlib.ticker import MaxNLocator

    with style():
        figure = _figure(x_name, y_name)
        (axes,) = figure.axes
        for number, (name, heights) in enumerate(groups.items()):
            color = _color(number)
            axes.stairs(
                heights, edges, fill=True, label=name, linewidth=1.5, edgecolor=color, linestyle=_dash(number),
                facecolor=to_rgba(color, 0.3),
            )  # fmt: skip
        are_counts = all((heights == np.rint(heights)).all() for heights in groups.values())
        axes.yaxis.set_major_locator(MaxNLocator("auto", integer=are_counts))
        _add_legend(figure)
        return svg(figure, description)


def bins_table(caption: str, x_name: str, edges: Doubles, groups: Mapping[str, Doubles], form: str) -> Markup:
    """The numbers of a histogram as a table, without empty bins.

    `form` is the format of the edges, such as `.2f`; `g` for bins of integers, which are named by their first and last.
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


def _figure(x_name: str, y_name: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    figure.subplots().set(xlabel=x_name, ylabel=y_name)
    return figure


def _draw(figure: Figure, line: Line, number: int) -> None:
    (axes,) = figure.axes
    color, width = _color(number), 1.0 if line.faint or line.thin else 2.2
    dash, opacity = ("-", 0.35) if line.faint else (_dash(number), 1.0)
    marker = "o" if len(line.x) == 1 else ""
    label = f"_{line.name}" if line.faint else line.name
    axes.plot(line.x, line.y, dash, marker=marker, color=color, linewidth=width, alpha=opacity, label=label)
    if line.kept is not None and line.x[0] <= line.kept <= line.x[-1]:
        axes.axvline(line.kept, color=PALE, linewidth=1, linestyle=":")
        at = line.x == line.kept
        axes.plot(line.x[at], line.y[at], "o", color=color, markersize=8, fillstyle="none", markeredgewidth=2)


def _add_legend(figure: Figure) -> None:
    handles, names = figure.axes[0].get_legend_handles_labels()
    entries = dict(zip(names, handles, strict=True))
    if len(entries) > 1:
        figure.legend(entries.values(), entries.keys(), loc="outside lower left", ncols=2, frameon=False)


def _bin(low: float, high: float, form: str) -> str:
    return f"{low:{form}}" if high <= low else f"{low:{form}} to {high:{form}}"


def _color(number: int) -> str:
    return f"#00000{number % NUM_COLORS + 1}"


def _dash(number: int) -> str:
    return DASHES[(number + number // NUM_COLORS) % len(DASHES)]
