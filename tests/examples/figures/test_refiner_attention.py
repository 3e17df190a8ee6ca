from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from examples.figures import refiner_attention
from examples.figures.refiner_attention import attention_grid, refined_neighbors
from tests.analysis.refiners import embedded, in_sides, misfits, moving, pictured
from vicinal.data import Table
from vicinal.report.drawing import QUERY, RIGHT, UNKNOWN, WRONG
from vicinal.utils.errors import InputError


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What is written from now on."""
    made: list[Figure] = []
    monkeypatch.setattr(refiner_attention, "write_figure", lambda figure, path: made.append(figure))
    return made


def nearest(vectors: np.ndarray, row: int, among: np.ndarray, k: int) -> list[int]:
    scores = vectors[among] @ vectors[row]
    scores[among == row] = -np.inf
    return among[np.argsort(-scores)[:k]].tolist()


@pytest.mark.parametrize("make", [embedded, in_sides])
def test_neighbors_by_hand(make) -> None:
    refiner, (vectors, table) = moving(), make()
    number = np.arange(30)
    there = number[(number % 2 == 0) | (number % 3 == 0)] if make is in_sides else number
    found = refined_neighbors(refiner, vectors, table, [27, 4])
    base = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    refined = base.copy()
    for row in there:
        context = torch.from_numpy(base[nearest(base, row, there, 3)])[None]
        refined[row] = refiner(torch.from_numpy(base[[row]]), context).detach()
    for place, row in enumerate((27, 4)):
        before, after = nearest(base, row, there, 3), nearest(refined, row, there, 3)
        assert found.before.ids[place].tolist() == before
        assert found.after.ids[place].tolist() == after
        np.testing.assert_allclose(found.before.scores[place], base[before] @ base[row], atol=1e-5)
        np.testing.assert_allclose(found.after.scores[place], refined[after] @ refined[row], atol=1e-5)
        looked = refiner.attention_weights(torch.from_numpy(base[[row]]), torch.from_numpy(base[before])[None])[:, 0]
        np.testing.assert_allclose(found.attention[:, place], looked.detach(), atol=1e-5)
    np.testing.assert_allclose(found.attention.sum(axis=2), 1, rtol=1e-5)
    assert refiner.training  # as it was


def test_fewer_neighbors_than_the_refiner_wants() -> None:
    found = refined_neighbors(moving(neighbors=9), *embedded(4, 2), [1])
    assert found.before.ids.shape == found.after.ids.shape == (1, 3)
    assert found.attention.shape == (3, 1, 3)


def test_grid(tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch) -> None:
    cells = []
    monkeypatch.setattr(refiner_attention, "cell", lambda axes, *given: cells.append(given))
    refiner, (vectors, table) = moving(), pictured(tmp_path)
    attention_grid(refiner, vectors, table, np.array([27, 4]), "grid.png")
    found = refined_neighbors(refiner, vectors, table, [27, 4])
    assert len(cells) == 2 * (1 + 3 + 3)
    for place, row in enumerate((27, 4)):
        query, *others = cells[7 * place : 7 * place + 7]
        assert query[0] == {"path": table.paths[row], "label": row % 5}
        assert query[3:] == (QUERY, f"query, row {row}")
        for side, drawn in ((found.before, others[:3]), (found.after, others[3:])):
            for index, score, (item, _, _, color, caption) in zip(
                side.ids[place], side.scores[place], drawn, strict=True
            ):
                right = index % 5 == row % 5
                assert item["path"] == table.paths[index]
                assert (color, caption) == (RIGHT if right else WRONG, f"{score:.2f} {'✓' if right else '✗'}")
        assert others[0][2] < query[2] < others[3][2]  # before above after, and the query between them
    (axes,) = figures[0].axes
    weights = found.attention.mean(axis=0)
    lengths = np.array([bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]).reshape(2, 3, 2)
    np.testing.assert_allclose(lengths[..., 1] / lengths[..., 0], weights / weights.max(axis=1, keepdims=True), 1e-5)
    texts = [text.get_text() for text in axes.texts]
    assert [text for text in texts if "%" in text] == [f"{100 * weight:.0f} %" for weight in weights.ravel()]
    assert texts.count("before") == texts.count("after") == 2
    for text in axes.texts:
        assert -0.16 <= text.get_position()[0] <= axes.get_xlim()[1]


def test_grid_without_labels_and_with_many_neighbors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, table = pictured(tmp_path)
    unlabeled = Table(table.frame[["path"]])
    colors, draw = [], refiner_attention.cell
    monkeypatch.setattr(refiner_attention, "cell", lambda *given: (colors.append(given[4]), draw(*given)))
    attention_grid(moving(neighbors=20), vectors, unlabeled, [3], tmp_path / "grid.png")
    assert colors == [QUERY] + [UNKNOWN] * 24
    width, height = Image.open(tmp_path / "grid.png").size
    assert width == pytest.approx(172.5 * (13 * 1.16 + 0.2 + 0.32), abs=2)
    assert height == pytest.approx(172.5 * (2 * (1.16 + 3 * 0.17) + 0.16), abs=2)


def test_what_a_grid_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given, rows, message in misfits(tmp_path):
        with pytest.raises(InputError, match=message):
            attention_grid(moving(), given, rows, [0], tmp_path / "grid.png")
    vectors, table = pictured(tmp_path)
    for queries, message in (
        ([], "at least one"),
        ([1.5], "queries are float64"),
        ([30], "queries name row 30; the table has 30 rows"),
        ([-1], "queries name row -1"),
    ):
        with pytest.raises(InputError, match=message):
            attention_grid(moving(), vectors, table, queries, tmp_path / "grid.png")
    with pytest.raises(InputError, match="26 queries are too many"):
        attention_grid(moving(), vectors, table, list(range(26)), tmp_path / "grid.png")
    with pytest.raises(InputError, match="neither query nor gallery"):
        refined_neighbors(moving(), *in_sides(), [0, 1])
    with pytest.raises(InputError, match="0 neighbors of 30 embeddings leave none"):
        refined_neighbors(moving(neighbors=0), vectors, table, [0])
    with pytest.raises(InputError, match="needs the images' paths"):
        attention_grid(moving(), *embedded(), [0], tmp_path / "grid.png")
    assert not (tmp_path / "grid.png").exists()
    monkeypatch.setattr(refiner_attention, "refined_neighbors", lambda *_: pytest.fail("work began"))
    with pytest.raises(InputError, match=r"grid\.doc: pictures end in"):
        attention_grid(moving(), vectors, table, [0], tmp_path / "grid.doc")


def test_a_row_that_is_not_evaluated_has_no_neighbors() -> None:
    with pytest.raises(InputError, match="neither query nor gallery"):
        refined_neighbors(moving(), *in_sides(), [0, 1])
