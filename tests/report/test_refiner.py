from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.quiver import Quiver
from PIL import Image
from scipy.special import entr
from sklearn.datasets import load_digits

from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.evaluation import evaluate
from vicinal.models.refiner import ContextRefiner
from vicinal.report import compared, drawing, refiner_attention, refiner_depths, refiner_map
from vicinal.report.drawing import QUERY, RIGHT, UNKNOWN, WRONG
from vicinal.report.refiner_attention import attention_grid, neighborhoods
from vicinal.report.refiner_depths import depth_curve, depth_curves, metrics_at_depths
from vicinal.report.refiner_map import movement, movement_map
from vicinal.retrieval.refine import Refinement

DIM = 6


def moving(depth: int = 3, neighbors: int = 3) -> ContextRefiner:
    """A refiner that is not the identity."""
    torch.manual_seed(0)
    refiner = ContextRefiner(DIM, depth, heads=2, neighbors=neighbors)
    with torch.no_grad():
        for block in refiner.blocks:
            block.output.copy_(0.3 * torch.randn(DIM, DIM))
    return refiner


def expanding(dim: int, neighbors: int = 8) -> ContextRefiner:
    """Two blocks that each add half the mean of the neighbours: query expansion."""
    refiner = ContextRefiner(dim, depth=2, heads=1, neighbors=neighbors)
    with torch.no_grad():
        for block in refiner.blocks:
            block.value.copy_(torch.eye(dim))
            block.output.copy_(0.5 * torch.eye(dim))
            block.query.zero_()
    return refiner


def embedded(rows: int = 30, classes: int = 5, **columns: object) -> tuple[np.ndarray, Table]:
    vectors = np.random.default_rng(1).normal(size=(rows, DIM))
    return vectors, Table(pd.DataFrame({"label": np.arange(rows) % classes, **columns}))


def in_sides(rows: int = 30) -> tuple[np.ndarray, Table]:
    """Each third row is a query, each second one in the gallery; ten are neither."""
    number = np.arange(rows)
    return embedded(rows, is_query=number % 3 == 0, is_gallery=number % 2 == 0)


def noisy_digits(rows: int = 400) -> tuple[np.ndarray, Table]:
    data = load_digits()
    noise = np.random.default_rng(0).normal(size=data.data.shape)
    return (data.data - data.data.mean(axis=0) + 5 * noise)[:rows], Table(pd.DataFrame({"label": data.target[:rows]}))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What is written from now on."""
    made: list[Figure] = []
    for pictures in (refiner_attention, refiner_depths, refiner_map):
        monkeypatch.setattr(pictures, "write_figure", lambda figure, path: made.append(figure))
    return made


# Recall by depth ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [embedded, in_sides])
def test_metrics_are_those_of_evaluation_at_every_depth(make) -> None:
    refiner, (vectors, table) = moving(), make()
    metrics = metrics_at_depths(refiner, vectors, table)
    assert len(metrics) == 4
    assert metrics[0] == evaluate(vectors, table).metrics
    for depth, found in enumerate(metrics):
        expected = evaluate(vectors, table, rerank=Refinement(refiner, depth=depth)).metrics
        assert found == pytest.approx(expected, abs=1e-12)
    assert len({each["mAP@R"] for each in metrics}) == 4


def test_neighbours_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, search = [], Refinement.neighbors_of_queries
    monkeypatch.setattr(Refinement, "neighbors_of_queries", lambda *given: (calls.append(1), search(*given))[1])
    metrics_at_depths(moving(), *embedded())
    assert len(calls) == 1


def test_neighbours_help_on_digits() -> None:
    base, *_, last = metrics_at_depths(expanding(64), *noisy_digits())
    assert last["mAP@R"] > base["mAP@R"] + 0.05


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
    metrics = metrics_at_depths(refiner, vectors, table)
    for axes, name in zip(figures[0].axes, ("recall@1", "mAP@R"), strict=True):
        gains = [100 * (each[name] - metrics[0][name]) for each in metrics]
        np.testing.assert_allclose(axes.lines[1].get_ydata(), gains, atol=1e-9)


# The map --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_what_does_not_change_does_not_move(method) -> None:
    vectors, table = embedded()
    same = movement(ContextRefiner(DIM, heads=2, neighbors=3), vectors, table, method=method)
    np.testing.assert_allclose(same.before, same.after, atol=1e-4 * np.abs(same.before).max())
    moved = movement(moving(), vectors, table, method=method)
    np.testing.assert_allclose(moved.before, same.before)  # the map is that of e^0
    assert np.abs(moved.before - moved.after).max() > 0.1 * np.abs(moved.before).max()


def test_pca_projects() -> None:
    refiner, (vectors, table) = moving(), embedded()
    moved = movement(refiner, vectors, table, method="pca")
    base = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    mean, axes = base.mean(axis=0), np.linalg.svd(base - base.mean(axis=0))[2][:2].T
    axes = axes * np.sign(((base - mean) @ axes)[0]) * np.sign(moved.before[0])
    np.testing.assert_allclose(moved.before, (base - mean) @ axes, atol=1e-5)
    after = Refinement(refiner).apply(compared.one_set(compared.compared(refiner, vectors, table).vectors))
    np.testing.assert_allclose(moved.after, (after.queries.block(0, 30).numpy() - mean) @ axes, atol=1e-5)


def test_weights_have_the_perplexity_and_leave_out_oneself() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = refiner_map._distances_to_others(vectors, vectors)
    np.testing.assert_allclose(distances[3, 7], ((vectors[3] - vectors[7]) ** 2).sum())
    weights = refiner_map._neighbor_weights(distances, 7.5)
    np.testing.assert_allclose(np.exp(entr(weights).sum(axis=1)), 7.5, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (np.diag(weights) == 0).all()
    assert (np.argmax(weights, axis=1) == np.argmin(distances, axis=1)).all()
    assert np.isfinite(refiner_map._neighbor_weights(np.zeros((6, 6)), 2)).all()  # equal distances: no width will do


def test_classes_contract_on_the_map() -> None:
    """Averages of neighbours are nearer to each other, and images of other classes are not."""
    vectors, table = noisy_digits()
    moved = movement(expanding(64), vectors, table, images=200)
    labels = table.labels[moved.rows]
    apart = []
    for places in (moved.before, moved.after):
        middles = np.stack([np.median(places[labels == label], axis=0) for label in range(10)])
        apart.append(np.median(np.linalg.norm(places - middles[labels], axis=1)) / places.std())
    assert apart[1] < 0.85 * apart[0]


def test_images_are_drawn_class_by_class() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] + [3] * 20)
    rows = refiner_map._images_of_classes(labels, 33, seed=0)
    assert np.bincount(labels[rows]).tolist() == [15, 3, 0, 15]
    assert (np.diff(rows) > 0).all()
    many = np.repeat(np.arange(60), 4)
    assert sorted(np.bincount(many[refiner_map._images_of_classes(many, 500, 0)]))[-20:] == [4] * 20
    assert len(refiner_map._images_of_classes(many, 500, 0)) == 80
    assert np.bincount(many[refiner_map._images_of_classes(many, 10, 0)]).max() == 2
    assert not np.array_equal(refiner_map._images_of_classes(many, 80, 0), refiner_map._images_of_classes(many, 80, 1))


def test_seed_and_context_beyond_the_map() -> None:
    """The same images have the same places; their neighbours may be images that are not on the map."""
    refiner, (vectors, table) = moving(), embedded(60)
    first, same, other = (movement(refiner, vectors, table, 20, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.after, same.after)
    assert not np.array_equal(first.rows, other.rows)
    alone = movement(refiner, vectors[first.rows], table.take(first.rows), 20, "pca")
    beyond = movement(refiner, vectors, table, 20, "pca")
    np.testing.assert_allclose(alone.before, beyond.before, atol=1e-6)
    assert np.abs(alone.after - beyond.after).max() > 0.1


def test_only_what_is_evaluated_is_on_the_map() -> None:
    vectors, table = in_sides()
    moved = movement(moving(), vectors, table, method="pca")
    number = moved.rows
    assert ((number % 2 == 0) | (number % 3 == 0)).all()
    assert len(number) == 20


def test_arrows_and_colours(figures: list[Figure], monkeypatch: pytest.MonkeyPatch) -> None:
    refiner, (vectors, table) = moving(), embedded(label=[f"class {i % 3}" for i in range(30)])
    moved = movement(refiner, vectors, table, 12, "pca")
    moved = moved._replace(after=3 * moved.after)  # beyond the points
    monkeypatch.setattr(refiner_map, "movement", lambda *given: moved if given[3:] == (12, "pca", 7) else None)
    movement_map(refiner, vectors, table, "map.png", method="pca", images=12, seed=7)
    (axes,) = figures[0].axes
    (arrows,) = [each for each in axes.collections if isinstance(each, Quiver)]
    np.testing.assert_allclose(np.stack([arrows.X, arrows.Y], axis=1), moved.before)
    np.testing.assert_allclose(np.stack([arrows.U, arrows.V], axis=1), moved.after - moved.before)
    assert (arrows.scale, arrows.angles, arrows.scale_units) == (1, "xy", "xy")
    expected = [to_rgba(drawing.COLORS[row % 3]) for row in moved.rows]
    np.testing.assert_allclose(arrows.get_facecolors(), expected)
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["class 0", "class 1", "class 2"]
    low, high = (np.array(end) for end in zip(axes.get_xlim(), axes.get_ylim(), strict=True))
    for points in (moved.before, moved.after):
        assert (points > low).all()
        assert (points < high).all()
    assert len(set(drawing.COLORS)) == 20


# Neighbours before and after ------------------------------------------------------------------------------------------


def nearest(vectors: np.ndarray, row: int, among: np.ndarray, k: int) -> list[int]:
    scores = vectors[among] @ vectors[row]
    scores[among == row] = -np.inf
    return among[np.argsort(-scores)[:k]].tolist()


@pytest.mark.parametrize("make", [embedded, in_sides])
def test_neighborhoods_by_hand(make) -> None:
    refiner, (vectors, table) = moving(), make()
    number = np.arange(30)
    there = number[(number % 2 == 0) | (number % 3 == 0)] if make is in_sides else number
    found = neighborhoods(refiner, vectors, table, [27, 4])
    base = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    refined = base.copy()
    for row in there:
        context = torch.from_numpy(base[nearest(base, row, there, 3)])[None]
        refined[row] = refiner(torch.from_numpy(base[[row]]), context).detach()
    for place, row in enumerate((27, 4)):
        before, after = nearest(base, row, there, 3), nearest(refined, row, there, 3)
        assert found.before.indices[place].tolist() == before
        assert found.after.indices[place].tolist() == after
        np.testing.assert_allclose(found.before.scores[place], base[before] @ base[row], atol=1e-5)
        np.testing.assert_allclose(found.after.scores[place], refined[after] @ refined[row], atol=1e-5)
        looked = refiner.attention(torch.from_numpy(base[[row]]), torch.from_numpy(base[before])[None])[:, 0]
        np.testing.assert_allclose(found.attention[:, place], looked.detach(), atol=1e-5)
    np.testing.assert_allclose(found.attention.sum(axis=2), 1, rtol=1e-5)
    assert refiner.training  # as it was


def test_fewer_neighbours_than_the_refiner_wants() -> None:
    found = neighborhoods(moving(neighbors=9), *embedded(4, 2), [1])
    assert found.before.indices.shape == found.after.indices.shape == (1, 3)
    assert found.attention.shape == (3, 1, 3)


def pictured(folder: Path, rows: int = 30) -> tuple[np.ndarray, Table]:
    paths = [str(folder / f"{row}.png") for row in range(rows)]
    for row, path in enumerate(paths):
        Image.new("RGB", (8, 8), (row, 0, 0)).save(path)
    return embedded(rows, path=paths)


def test_grid(tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch) -> None:
    cells = []
    monkeypatch.setattr(refiner_attention, "cell", lambda axes, *given: cells.append(given))
    refiner, (vectors, table) = moving(), pictured(tmp_path)
    attention_grid(refiner, vectors, table, np.array([27, 4]), "grid.png")
    found = neighborhoods(refiner, vectors, table, [27, 4])
    assert len(cells) == 2 * (1 + 3 + 3)
    for place, row in enumerate((27, 4)):
        query, *others = cells[7 * place : 7 * place + 7]
        assert query[0] == {"path": table.paths[row], "label": row % 5}
        assert query[3:] == (QUERY, f"query, row {row}")
        for side, drawn in ((found.before, others[:3]), (found.after, others[3:])):
            for index, score, (item, _, _, color, caption) in zip(
                side.indices[place], side.scores[place], drawn, strict=True
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


def test_grid_without_labels_and_with_many_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, table = pictured(tmp_path)
    unlabelled = Table(table.frame[["path"]])
    colors, draw = [], refiner_attention.cell
    monkeypatch.setattr(refiner_attention, "cell", lambda *given: (colors.append(given[4]), draw(*given)))
    attention_grid(moving(neighbors=20), vectors, unlabelled, [3], tmp_path / "grid.png")
    assert colors == [QUERY] + [UNKNOWN] * 24
    width, height = Image.open(tmp_path / "grid.png").size
    assert width == pytest.approx(172.5 * (13 * 1.16 + 0.2 + 0.32), abs=2)
    assert height == pytest.approx(172.5 * (2 * (1.16 + 3 * 0.17) + 0.16), abs=2)


# All three ------------------------------------------------------------------------------------------------------------


def draw_all(refiner: ContextRefiner, vectors: np.ndarray, table: Table, path: Path) -> list[object]:
    return [
        lambda: depth_curve(refiner, vectors, table, path),
        lambda: movement_map(refiner, vectors, table, path, method="pca"),
        lambda: attention_grid(refiner, vectors, table, [0], path),
    ]


def test_files_are_written(tmp_path: Path) -> None:
    vectors, table = pictured(tmp_path)
    for number, suffix in enumerate(("png", "pdf", "svg")):
        draw_all(moving(), vectors, table, tmp_path / f"{number}.{suffix}")[number]()
    assert Image.open(tmp_path / "0.png").width == 1260
    assert (tmp_path / "1.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "2.svg").read_text()


def test_suffix_is_looked_at_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, table = pictured(tmp_path)
    for pictures in (refiner_attention, refiner_depths, refiner_map):
        monkeypatch.setattr(pictures, "compared", lambda *_: pytest.fail("work began"))
    for draw in draw_all(moving(), vectors, table, tmp_path / "picture.doc"):
        with pytest.raises(InputError, match=r"picture\.doc: pictures end in"):
            draw()


def test_embeddings_that_do_not_fit(tmp_path: Path) -> None:
    vectors, table = pictured(tmp_path, 6)
    broken = vectors.copy()
    broken[3, 0] = np.nan
    empty = Table(table.frame.iloc[:0])
    for given, rows, message in (
        (vectors[:, :4], table, "embeddings have 4 dimensions, the refiner is for 6; use the refiner that"),
        (vectors[:5], table, "5 embeddings, but a table of 6 rows"),
        (vectors[:0], empty, "no embeddings to refine"),
        (broken, table, "embedding 3 holds NaN"),
    ):
        for draw in draw_all(moving(), given, rows, tmp_path / "picture.png"):
            with pytest.raises(InputError, match=message):
                draw()
    assert not (tmp_path / "picture.png").exists()


def test_what_a_curve_or_a_map_needs() -> None:
    vectors, table = embedded()
    unlabelled = Table(table.frame[[]].assign(number=1))
    with pytest.raises(InputError, match="no column 'label'"):
        metrics_at_depths(moving(), vectors, unlabelled)
    with pytest.raises(InputError, match="no column 'label'"):
        movement(moving(), vectors, unlabelled)
    with pytest.raises(InputError, match="method = 'umap' must be tsne or pca"):
        movement(moving(), vectors, table, method="umap")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="images = 4 must be at least 5"):
        movement(moving(), vectors, table, images=4)
    with pytest.raises(InputError, match="no map of 0 images"):
        movement(moving(), vectors, Table(pd.DataFrame({"label": range(30)})))
    with pytest.raises(InputError, match="not all the same"):
        movement(moving(), np.ones((30, DIM)), table)
    with pytest.raises(InputError, match="nothing to draw"):
        depth_curves({}, "a.png")
    with pytest.raises(InputError, match="nothing to draw"):
        depth_curves({"a": []}, "a.png")
    with pytest.raises(InputError, match="curve 'a' has no mAP@R at depth 1"):
        depth_curves({"a": [{"recall@1": 1.0, "mAP@R": 1.0}, {"recall@1": 1.0}]}, "a.png")


def test_queries_that_do_not_fit(tmp_path: Path) -> None:
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
        neighborhoods(moving(), *in_sides(), [0, 1])
    with pytest.raises(InputError, match="0 neighbours of 30 embeddings leave none"):
        neighborhoods(moving(neighbors=0), vectors, table, [0])
    with pytest.raises(InputError, match="needs the images' paths"):
        attention_grid(moving(), *embedded(), [0], tmp_path / "grid.png")
    assert not (tmp_path / "grid.png").exists()
