from __future__ import annotations

import numpy as np
import pytest

from vicinal.retrieval import neighbor_sets
from vicinal.retrieval.neighbor_sets import NeighborSets, shared_members

WIDTH = 90


def random_sets(images: int, seed: int) -> NeighborSets:
    """Sets of none to all of the gallery rows."""
    rng = np.random.default_rng(seed)
    return NeighborSets.of_pairs(*(rng.random((images, WIDTH)) < rng.random((images, 1))).nonzero(), images)


@pytest.mark.parametrize("seed", range(5))
def test_counting_by_products_and_by_marks_are_equal(monkeypatch, seed: int) -> None:
    left, right, rng = random_sets(40, seed), random_sets(60, seed + 100), np.random.default_rng(seed)
    rows, others = (rng.random((40, 60)) < rng.choice([0.02, 0.5, 1])).nonzero()
    members = [[set(each.slice(i, i + 1).members.tolist()) for i in range(len(each.sizes))] for each in (left, right)]
    wanted = [len(members[0][row] & members[1][other]) for row, other in zip(rows, others, strict=True)]
    product, used = neighbor_sets._count_by_product, []
    monkeypatch.setattr(neighbor_sets, "_count_by_product", lambda *given: (used.append(1), product(*given))[1])
    monkeypatch.setattr(neighbor_sets, "MARKS", 13 * WIDTH)  # blocks, the last one smaller
    monkeypatch.setattr(neighbor_sets, "MOST_AT_ONCE", 700)
    for large, speed in ((WIDTH + 1, 64), (0, 10**9), (40, 10**9)):  # all by marks, all by products, some by each
        monkeypatch.setattr(neighbor_sets, "LARGE", large)
        monkeypatch.setattr(neighbor_sets, "PRODUCT_SPEED", speed)
        used.clear()
        assert shared_members(left, rows, right, others, WIDTH).tolist() == wanted
        assert bool(used) == (large <= WIDTH)


def test_no_pairs_are_no_sets() -> None:
    sets = NeighborSets.of_pairs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 2)
    assert sets.sizes.tolist() == [0, 0]
