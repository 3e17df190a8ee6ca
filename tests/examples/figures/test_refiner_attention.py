from pathlib import Path

import numpy as np
import pytest
import torch

from examples.figures.refiner_attention import attention_grid, refined_neighbors
from tests.analysis.refiners import embedded, in_sides, misfits, moving, pictured
from tests.refusals import refused_call


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


def test_what_a_grid_needs(tmp_path: Path) -> None:
    vectors, table = pictured(tmp_path)
    for given, rows, queries, message in (
        *((given, rows, [0], message) for given, rows, message in misfits(tmp_path)),
        (vectors, table, [], "at least one"),
        (vectors, table, [1.5], "queries are float64"),
        (vectors, table, [30], "queries name row 30; the table has 30 rows"),
        (vectors, table, list(range(26)), "26 queries are too many"),
        (*embedded(), [0], "needs the images' paths"),
    ):
        refused_call(message, attention_grid, moving(), given, rows, queries, tmp_path / "grid.png")
    assert not (tmp_path / "grid.png").exists()
    refused_call("neither query nor gallery", refined_neighbors, moving(), *in_sides(), [0, 1])
    refused_call("0 neighbors of 30 embeddings leave none", refined_neighbors, moving(neighbors=0), vectors, table, [0])
