"""Pictures: contact sheets, learning curves and curves over the depths of a refiner."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from tests.analysis.refiners import embedded, moving
from tests.refusals import refused_call
from vicinal.analysis import metrics_by_depth
from vicinal.data import ImageTransform
from vicinal.report import (
    MatchedPair,
    contact_sheets,
    depth_curve,
    draw_matching_patches,
    learning_curves,
    neighbor_grid,
)
from vicinal.report.drawing import DPI, EMPTY, QUERY, RIGHT, UNKNOWN, WRONG
from vicinal.retrieval import PatchMatches
from vicinal.utils.errors import InputError


def picture(color: str, size: tuple[int, int] = (32, 32)) -> Image.Image:
    return Image.new("RGB", size, color)


def pixels(path: Path, color: str) -> np.ndarray:
    image = np.asarray(Image.open(path).convert("RGB")).astype(float) / 255
    return np.argwhere(np.abs(image - to_rgb(color)).max(axis=2) < 0.02)


def item(label: object, score: float = 0.5) -> dict[str, object]:
    return {"path": picture("white"), "label": label, "score": score}


@pytest.mark.parametrize("unknown", [None, float("nan"), pd.NA])
def test_frames_say_what_is_right(tmp_path, unknown: object) -> None:
    out = tmp_path / "grid.png"
    neighbor_grid(
        [{"path": picture("white"), "label": "cat"}], [[item("".join(["ca", "t"])), item("dog"), item(unknown)]], out
    )
    width = Image.open(out).width
    centres = [pixels(out, color)[:, 1].mean() / width for color in (QUERY, RIGHT, WRONG, UNKNOWN)]
    assert centres == sorted(centres)  # query, right, wrong and unknown stand from left to right
    assert np.diff(centres).min() > 0.15


def test_images_keep_their_proportions(tmp_path) -> None:
    neighbor_grid([{"path": picture("#123456", (400, 100)), "label": 1}], [[item(1)]], tmp_path / "grid.png")
    where = pixels(tmp_path / "grid.png", "#123456")
    height, width = np.ptp(where, axis=0) + 1
    assert width / height == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("without", [{}, {"path": None}, {"path": float("nan")}])
def test_what_has_no_path_is_an_empty_cell(tmp_path, without: dict[str, object]) -> None:
    neighbor_grid([without], [[{**without, "id": 3, "label": "cat", "score": 0.5}]], tmp_path / "grid.png")
    image = Image.open(tmp_path / "grid.png")
    assert len(pixels(tmp_path / "grid.png", EMPTY)) == pytest.approx(
        2 * (DPI * contact_sheets.CELL_INCHES) ** 2, rel=0.1
    )
    assert image.size == (pytest.approx(2.64 * 172, abs=2), pytest.approx(1.66 * 172, abs=2))


def test_more_rows_than_fit_are_on_further_sheets(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(contact_sheets, "MAX_ROWS", 3)
    monkeypatch.setattr(contact_sheets, "MAX_SHEETS", 2)
    titles = []
    draw = contact_sheets.canvas
    monkeypatch.setattr(
        contact_sheets, "canvas", lambda rows, columns, title, lines: (titles.append(title), draw(rows, 1, title))[1]
    )
    sheets = [
        [sheet.name for sheet in neighbor_grid([{"label": "a"}] * rows, [[]] * rows, tmp_path / "grid.png", title)]
        for rows, title in ((3, "Mine"), (4, "Mine"), (1200, None))
    ]
    assert sheets == [["grid.png"], ["grid.png", "grid_2.png"], ["grid.png", "grid_2.png"]]
    assert titles[:3] == ["Mine", "Mine - queries 1 to 3 of 4", "Mine - queries 4 to 4 of 4"]
    assert titles[3:] == ["queries 1 to 3 of 1,200", "queries 4 to 6 of 1,200; the others are left out"]


def test_many_neighbors_go_on_in_the_next_row(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(contact_sheets, "MAX_COLUMNS", 3)
    neighbor_grid([item("a")], [[item("a")] * 7], tmp_path / "grid.png")
    where = pixels(tmp_path / "grid.png", RIGHT)
    image = Image.open(tmp_path / "grid.png")
    assert image.height == pytest.approx(3 * DPI * contact_sheets.CELL_INCHES * 1.5, rel=0.1)
    below = where[where[:, 0] > 0.7 * image.height]
    assert below[:, 1].max() < 0.55 * image.width  # the seventh is the first of its row


def test_boxes_and_captions(tmp_path) -> None:
    both = Image.new("RGB", (64, 32), "white")
    both.paste("#123456", (32, 0, 64, 32))
    shown = {"path": both, "label": "cup", "score": 0.5, "box": [32, 0, 64, 32]}
    neighbor_grid([shown], [[shown]], tmp_path / "grid.png")
    plain = Image.open(tmp_path / "grid.png").size
    assert len(pixels(tmp_path / "grid.png", "#123456")) > 40_000  # all of two cells
    neighbor_grid([shown], [[{**shown, "caption": "price 12.5"}]], tmp_path / "grid.png")
    assert Image.open(tmp_path / "grid.png").height > plain[1]


def test_picture_too_large_for_its_format_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(contact_sheets, "CELL_INCHES", 0.05)
    monkeypatch.setattr(contact_sheets, "MAX_ROWS", 10**6)
    rows = 6000
    monkeypatch.setattr(contact_sheets, "cell", lambda *_: None)
    with pytest.raises(InputError, match=r"wide\.jpg: a picture of \d+ x \d+ pixels cannot be written as jpg \(.+\)"):
        neighbor_grid([{}] * rows, [[]] * rows, tmp_path / "wide.jpg")
    assert list(tmp_path.iterdir()) == []


def test_bad_input(tmp_path) -> None:
    refused_call("1 queries and 2 lists", neighbor_grid, [item("a")], [[], []], tmp_path / "grid.png")
    refused_call("0 queries", neighbor_grid, [], [], tmp_path / "grid.png")
    refused_call(r"pictures end in .*\.png", neighbor_grid, [item("a")], [[item("a")]], tmp_path / "grid.doc")
    with pytest.raises(InputError, match="log has no column 'loss'"):
        learning_curves(pd.DataFrame({"step": [1]}), pd.DataFrame(), tmp_path / "curves.png")
    assert list(tmp_path.iterdir()) == []


LOG = pd.DataFrame({"step": range(50), "loss": np.linspace(3, 1, 50)})


def test_learning_curves(tmp_path) -> None:
    metrics = pd.DataFrame({"step": [10, 20], "recall@1": [0.2, 0.5], "recall@2": [0.3, 0.6], "mAP": [0.1, 0.2]})
    learning_curves(LOG, metrics, tmp_path / "both.png")
    learning_curves(LOG, pd.DataFrame(), tmp_path / "loss.png")
    both, loss = Image.open(tmp_path / "both.png"), Image.open(tmp_path / "loss.png")
    assert both.width == loss.width
    assert both.height > loss.height
    assert len(pixels(tmp_path / "both.png", "#1a7f4b"))


def test_learning_curves_mark_the_kept_epoch(tmp_path, figures: list[Figure]) -> None:
    metrics = pd.DataFrame({"step": [10, 20], "epoch": [1, 2], "recall@1": [0.6, 0.5]})
    learning_curves(LOG, metrics, tmp_path / "curves.png", kept_epoch=1)
    for panel in figures[0].axes:
        (line,) = [line for line in panel.lines if line.get_label() == "kept: epoch 1"]
        assert set(line.get_xdata()) == {10}


def test_pairs_without_a_patch_in_common_are_drawn_too(tmp_path: Path) -> None:
    gray, nothing = Image.new("L", (9, 300), 128), np.empty((0, 2))
    pair = MatchedPair(gray, gray, PatchMatches(nothing, nothing, np.empty(0, np.float32), grid=(2, 2)), "$a$")
    draw_matching_patches([pair], ImageTransform(size=8), tmp_path / "patches.png")
    assert Image.open(tmp_path / "patches.png").width > 100


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    made: list[Figure] = []
    monkeypatch.setattr("vicinal.report.plots.write_figure", lambda figure, path: made.append(figure))
    return made


def test_curves_are_gains_and_the_legend_has_the_numbers(figures: list[Figure], monkeypatch) -> None:
    curve = [{"recall@1": recall, "mAP@R": 0.2 + recall / 10} for recall in (0.5, 0.56, 0.54)]
    monkeypatch.setattr("vicinal.report.plots.metrics_by_depth", lambda *_: curve)
    refiner, (vectors, table) = moving(), embedded()
    depth_curve(refiner, vectors, table, "a.png")
    recall, precision = figures[0].axes
    assert (recall.get_title(), precision.get_title()) == ("recall@1", "mAP@R")
    np.testing.assert_allclose(recall.lines[1].get_ydata(), [0, 6, 4])
    np.testing.assert_allclose(recall.lines[1].get_xdata(), [0, 1, 2])
    legends = [axes.get_legend().get_texts()[0].get_text() for axes in figures[0].axes]
    assert legends == ["50.00 % → 54.00 % (+4.00), best 56.00 % at 1", "25.00 % → 25.40 % (+0.40), best 25.60 % at 1"]


def test_depth_curve_is_of_the_metrics(figures: list[Figure]) -> None:
    refiner, (vectors, table) = moving(), embedded()
    depth_curve(refiner, torch.from_numpy(vectors), table, "a.png")
    metrics = metrics_by_depth(refiner, vectors, table)
    for axes, name in zip(figures[0].axes, ("recall@1", "mAP@R"), strict=True):
        gains = [100 * (each[name] - metrics[0][name]) for each in metrics]
        np.testing.assert_allclose(axes.lines[1].get_ydata(), gains, atol=1e-9)
