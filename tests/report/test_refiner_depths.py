from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.analysis.refiners import embedded, moving
from vicinal.analysis import metrics_by_depth
from vicinal.report import depth_curve, depth_curves
from vicinal.utils.errors import InputError


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What is written from now on."""
    made: list[Figure] = []
    monkeypatch.setattr("vicinal.report.plots.write_figure", lambda figure, path: made.append(figure))
    return made


def test_curves_are_gains_and_the_legend_has_the_numbers(figures: list[Figure]) -> None:
    mine = [{"recall@1": recall, "mAP@R": 0.2 + recall / 10} for recall in (0.5, 0.56, 0.54)]
    depth_curves({"mine $": mine, "": [{"recall@1": 0.7, "mAP@R": 0.3}, {"recall@1": 0.6, "mAP@R": 0.4}]}, "a.png")
    recall, precision = figures[0].axes
    assert (recall.get_title(), precision.get_title()) == ("recall@1", "mAP@R")
    _, first, second = recall.lines
    np.testing.assert_allclose(first.get_ydata(), [0, 6, 4])
    np.testing.assert_allclose(first.get_xdata(), [0, 1, 2])
    np.testing.assert_allclose(second.get_ydata(), [0, -10])
    assert [text.get_text() for text in recall.get_legend().get_texts()] == [
        r"mine \$: 50.00 % → 54.00 % (+4.00), best 56.00 % at 1",
        "70.00 % → 60.00 % (-10.00), best 70.00 % at 0",
    ]
    assert precision.get_legend().get_texts()[1].get_text() == "30.00 % → 40.00 % (+10.00)"


def test_depth_curve_is_of_the_metrics(figures: list[Figure]) -> None:
    refiner, (vectors, table) = moving(), embedded()
    depth_curve(refiner, torch.from_numpy(vectors), table, "a.png")
    metrics = metrics_by_depth(refiner, vectors, table)
    for axes, name in zip(figures[0].axes, ("recall@1", "mAP@R"), strict=True):
        gains = [100 * (each[name] - metrics[0][name]) for each in metrics]
        np.testing.assert_allclose(axes.lines[1].get_ydata(), gains, atol=1e-9)


def test_what_a_curve_needs() -> None:
    for curves in ({}, {"a": []}):
        with pytest.raises(InputError, match="nothing to draw"):
            depth_curves(curves, "a.png")
    with pytest.raises(InputError, match="curve 'a' has no mAP@R at depth 1"):
        depth_curves({"a": [{"recall@1": 1.0, "mAP@R": 1.0}, {"recall@1": 1.0}]}, "a.png")
