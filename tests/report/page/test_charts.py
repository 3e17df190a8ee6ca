"""Charts of a page; the colors of their lines can be told apart with any color vision, on light and dark paper."""

import re
from importlib import resources

import numpy as np
import pytest

from vicinal.report.page import charts
from vicinal.report.page.charts import NUM_COLORS, Line, bins_table, histogram_chart, line_chart, points_table, thinned


def test_thinned_keeps_both_ends_and_leaves_out_what_is_not_finite() -> None:
    x = np.arange(10_000.0)
    y = np.where(x == 5, np.nan, x)
    thin = thinned(x, y)
    assert len(thin[0]) == charts.MAX_POINTS
    assert (thin[0][0], thin[0][-1]) == (0, 9999)
    assert np.isfinite(thin).all()


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
    path = re.search(r'<path d="([^"]+)"[^>]*fill: var\(--color0\)', chart)
    assert len({height for _, height in re.findall(r"[ML] (\S+) (\S+)", path[1])}) == 3  # of no pair, one and two
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


VISIONS = {  # linear RGB as it is seen: Machado, Oliveira, Fernandes, IEEE TVCG 2009, severity 1
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_LMS = [  # and of that Oklab: Ottosson, https://bottosson.github.io/posts/oklab
    [0.41222147, 0.53633254, 0.05144599],
    [0.2119035, 0.68069954, 0.10739696],
    [0.08830246, 0.28171884, 0.6299787],
]
TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]
MIN_DISTANCE = 0.1  # of Oklab; colors that are just different are 0.02 apart
MIN_CONTRAST = 3.0  # of WCAG, for graphics


def palette(scheme: int) -> np.ndarray:
    """The paper and the colors of lines in linear RGB, [1 + NUM_COLORS, 3]; scheme 0 is light, 1 dark."""
    sheet = resources.files("vicinal.report.page").joinpath("page.css").read_text(encoding="utf-8")
    pairs = dict(re.findall(r"--(\w+): light-dark\(([^)]*)\)", sheet))
    names = ["paper", *(f"color{number}" for number in range(NUM_COLORS))]
    texts = [pairs[name].split(", ")[scheme] for name in names]
    values = np.array([[int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in texts]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("vision", VISIONS)
def test_lines_differ(scheme: int, vision: str) -> None:
    seen = (palette(scheme)[1:] @ np.transpose(VISIONS[vision])).clip(0, 1)
    lab = np.cbrt(seen @ np.transpose(TO_LMS)) @ np.transpose(TO_LAB)
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=2)[np.triu_indices(NUM_COLORS, 1)]
    assert apart.min() > MIN_DISTANCE


@pytest.mark.parametrize("scheme", [0, 1])
def test_lines_stand_out_from_the_paper(scheme: int) -> None:
    paper, *lines = palette(scheme) @ [0.2126, 0.7152, 0.0722] + 0.05
    assert min(max(line, paper) / min(line, paper) for line in lines) > MIN_CONTRAST
