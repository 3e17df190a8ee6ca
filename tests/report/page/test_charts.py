from __future__ import annotations

import re

import numpy as np

from vicinal.report.page import charts
from vicinal.report.page.charts import Line, bins_table, histogram_chart, line_chart, points_table, thinned


def test_thinned_keeps_both_ends_and_leaves_out_what_is_not_finite() -> None:
    x = np.arange(10_000.0)
    y = np.where(x == 5, np.nan, x)
    thin = thinned(x, y)
    assert len(thin[0]) == charts.MAX_POINTS
    assert (thin[0][0], thin[0][-1]) == (0, 9999)
    assert np.isfinite(thin).all()


def places_of(chart: str, color: int = 0) -> np.ndarray:
    """The coordinates of the first path in a color."""
    path = re.search(rf'<path d="([^"]+)"[^>]*(?:stroke|fill): var\(--color{color}\)', chart)
    assert path
    return np.array(re.findall(r"[ML] (\S+) (\S+)", path[1]), dtype=float)


def test_lines_differ_by_more_than_color() -> None:
    lines = [Line(str(number), np.arange(2.0), np.arange(2.0)) for number in range(12)]
    chart = line_chart(lines, "x", "y", "")
    looks = re.findall(r"fill: none;(?: stroke-dasharray: ([\d.,]+);.*?)? stroke: var\(--(color\d)\)", chart)
    assert len(set(looks)) == 12


def test_a_kept_point_is_marked_and_text_is_no_markup() -> None:
    names = ["<b>", "$x$ and $y"]
    lines = [Line(name, np.arange(3.0), np.arange(3.0), kept=1.0) for name in names]
    chart = line_chart([*lines, Line("behind", np.arange(3.0), np.arange(3.0), faint=True)], "x", "y", "")
    assert "&lt;b&gt;" in chart
    assert "$x$ and $y" in chart
    assert "behind" not in chart
    assert chart.count("<use ") > line_chart([line._replace(kept=None) for line in lines], "x", "y", "").count("<use ")


def test_histogram_fills_bins() -> None:
    chart = histogram_chart(
        np.array([0.0, 1.0, 2.0]), {"<a>": np.array([1.0, 2.0]), "b": np.zeros(2)}, "x", "y", "bars"
    )
    heights = places_of(chart)[:, 1]
    assert len(set(heights)) == 3  # of no pair, one and two
    assert "&lt;a&gt;" in chart
    assert "nan" not in histogram_chart(np.array([0.0, 1.0]), {"a": np.zeros(1)}, "x", "y", "")


def test_numbers_of_a_histogram() -> None:
    groups = {"a": np.array([1.0, 0.0, 2.5]), "b": np.array([3.0, 0.0, 0.0])}
    made = bins_table("What", "x", np.array([0.0, 1.0, 2.0, 3.0]), groups, ".1f")
    cells = re.findall(r"<t[hd]\b[^>]*>([^<]*)<", made)
    assert cells == ["x", "a", "b", "0.0 to 1.0", "1", "3", "2.0 to 3.0", "2.5", "0"]
    assert "5 to 6" in bins_table("What", "x", np.array([5.0, 7.0]), {"a": np.ones(1)}, "g")
    assert '"row">5<' in bins_table("What", "x", np.array([5.0, 6.0]), {"a": np.ones(1)}, "g")


def test_numbers_of_lines_are_few_and_end_where_they_end() -> None:
    lines = [Line("a", np.arange(500.0), np.arange(500.0)), Line("b", np.zeros(1), np.zeros(1), faint=True)]
    made = points_table("What", lines, "step", "loss")
    assert made.count("<tr>") == charts.MAX_LISTED + 1
    assert '"number">499<' in made
