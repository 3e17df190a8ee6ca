import numpy as np
import pandas as pd
import pytest

from tests.report.page.cases import Case
from vicinal.analysis import embedding_map
from vicinal.data import Table
from vicinal.data.class_samples import sample_classes


def labeled(labels: object, **columns: object) -> Table:
    return Table(pd.DataFrame({"label": labels, **columns}))


def test_map_fills_its_square_and_keeps_neighbors_near(noisy: Case) -> None:
    labels = noisy.table.labels
    apart = np.eye(6)[labels] + np.random.default_rng(0).normal(0, 0.02, (60, 6))
    points = embedding_map(apart, noisy.table)
    assert points["row"].tolist() == list(range(60))
    places = points[["x", "y"]].to_numpy()
    assert places.min() == pytest.approx(0)
    assert places.max() == pytest.approx(1)
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.eye(60) * 1e9
    assert (labels[distances.argmin(axis=1)] == labels).all()


def test_map_is_of_the_gallery() -> None:
    table = labeled(np.arange(20) % 2, is_query=np.arange(20) < 8, is_gallery=np.arange(20) >= 8)
    points = embedding_map(np.random.default_rng(0).normal(size=(20, 3)), table)
    assert points["row"].tolist() == list(range(8, 20))


def test_sample_of_many_has_whole_classes() -> None:
    labels = np.repeat(np.arange(1000), 5)
    rows = sample_classes(np.arange(5000), labels, max_rows=200, seed=0)
    assert len(rows) == 200
    assert (np.diff(rows) > 0).all()
    assert set(np.unique(labels[rows], return_counts=True)[1]) == {5}
    assert (rows == sample_classes(np.arange(5000), labels, max_rows=200, seed=0)).all()
    assert (rows != sample_classes(np.arange(5000), labels, max_rows=200, seed=1)).any()


@pytest.mark.parametrize("vectors", [np.eye(4), np.ones((20, 3))])
def test_no_map_of_few_or_of_equal_ones(vectors: np.ndarray) -> None:
    assert embedding_map(vectors, labeled(np.zeros(len(vectors)))).empty
