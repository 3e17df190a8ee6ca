from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import entr

from examples.figures import refiner_map
from examples.figures.refiner_map import movement
from tests.analysis.refiners import DIM, embedded, expanding, misfits, moving, noisy_digits
from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.models.refiner import ContextRefiner


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_what_does_not_change_does_not_move(method) -> None:
    vectors, table = embedded()
    same = movement(ContextRefiner(DIM, num_heads=2, neighbors=3), vectors, table, method=method)
    np.testing.assert_allclose(same.before, same.after, atol=1e-4 * np.abs(same.before).max())
    moved = movement(moving(), vectors, table, method=method)
    np.testing.assert_allclose(moved.before, same.before)  # the map is that of e^0
    assert np.abs(moved.before - moved.after).max() > 0.1 * np.abs(moved.before).max()


def test_weights_have_the_perplexity_and_leave_out_oneself() -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    squared = refiner_map.distances(vectors, vectors)
    np.testing.assert_allclose(squared[3, 7], ((vectors[3] - vectors[7]) ** 2).sum())
    weights = refiner_map.neighbor_weights(squared, 7.5)
    np.testing.assert_allclose(np.exp(entr(weights).sum(axis=1)), 7.5, rtol=1e-6)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    assert (np.diag(weights) == 0).all()
    assert (np.argmax(weights, axis=1) == np.argmin(squared, axis=1)).all()
    assert np.isfinite(refiner_map.neighbor_weights(np.zeros((6, 6)), 2)).all()  # equal distances: no width will do


def test_classes_contract_on_the_map() -> None:
    """Averages of neighbors are nearer to each other, and images of other classes are not."""
    vectors, table = noisy_digits()
    moved = movement(expanding(64), vectors, table, max_images=200)
    labels = table.labels[moved.rows]
    apart = []
    for places in (moved.before, moved.after):
        middles = np.stack([np.median(places[labels == label], axis=0) for label in range(10)])
        apart.append(np.median(np.linalg.norm(places - middles[labels], axis=1)) / places.std())
    assert apart[1] < 0.85 * apart[0]


def test_images_are_drawn_class_by_class() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] + [3] * 20)
    rows = refiner_map.sample_images(labels, 33, seed=0)
    assert np.bincount(labels[rows]).tolist() == [15, 3, 0, 15]
    assert (np.diff(rows) > 0).all()
    many = np.repeat(np.arange(60), 4)
    assert sorted(np.bincount(many[refiner_map.sample_images(many, 500, 0)]))[-20:] == [4] * 20
    assert not np.array_equal(refiner_map.sample_images(many, 80, 0), refiner_map.sample_images(many, 80, 1))


def test_seed_and_context_beyond_the_map() -> None:
    """The same images have the same places; their neighbors may be images that are not on the map."""
    refiner, (vectors, table) = moving(), embedded(60)
    first, same, other = (movement(refiner, vectors, table, 20, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.after, same.after)
    assert not np.array_equal(first.rows, other.rows)
    alone = movement(refiner, vectors[first.rows], table.take(first.rows), 20, "pca")
    beyond = movement(refiner, vectors, table, 20, "pca")
    np.testing.assert_allclose(alone.before, beyond.before, atol=1e-6)
    assert np.abs(alone.after - beyond.after).max() > 0.1


def test_what_a_map_needs(tmp_path: Path) -> None:
    vectors, table = embedded()
    for given, rows, message in misfits(tmp_path):
        refused_call(message, movement, moving(), given, rows)
    refused_call("no column 'label'", movement, moving(), vectors, Table(table.frame[[]].assign(number=1)))
    refused_call("method = 'umap' must be tsne or pca", movement, moving(), vectors, table, method="umap")
    refused_call("no map of 4 images", movement, moving(), vectors, table, max_images=4)
    refused_call("no map of 0 images", movement, moving(), vectors, Table(pd.DataFrame({"label": range(30)})))
    refused_call("not all the same", movement, moving(), np.ones((30, DIM)), table)
