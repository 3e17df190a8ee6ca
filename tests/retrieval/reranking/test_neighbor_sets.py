from __future__ import annotations

import numpy as np
import pytest

from vicinal.retrieval.reranking import neighbor_sets
from vicinal.retrieval.reranking.neighbor_sets import NeighborSets, intersection_sizes

WIDTH = 90


def random_sets(images: int, seed: int) -> NeighborSets:
    """Random sets of gallery rows, from empty ones to all rows."""
    rng = np.random.default_rng(seed)
    return NeighborSets.from_pairs(*(rng.random((images, WIDTH)) < rng.random((images, 1))).nonzero(), images)


@pytest.mark.parametrize("seed", range(5))
def test_counts_by_products_and_by_lookup_are_equal(monkeypatch, seed: int) -> None:
    left, right, rng = random_sets(40, seed), random_sets(60, seed + 100), np.random.default_rng(seed)
    rows, others = (rng.random((40, 60)) < rng.choice([0.02, 0.5, 1])).nonzero()
    members = [[set(each.slice(i, i + 1).members.tolist()) for i in range(len(each.sizes))] for each in (left, right)]
    wanted = [len(members[0][row] & members[1][other]) for row, other in zip(rows, others, strict=True)]
    product, used = neighbor_sets._count_by_product, []
    monkeypatch.setattr(neighbor_sets, "_count_by_product", lambda *given: (used.append(1), product(*given))[1])
    monkeypatch.setattr(neighbor_sets, "MASK_BYTES", 13 * WIDTH)  # blocks, the last one smaller
    monkeypatch.setattr(neighbor_sets, "MAX_MEMBERS", 700)
    for large, speed in ((WIDTH + 1, 64), (0, 10**9), (40, 10**9)):  # all by marks, all by products, some by each
        monkeypatch.setattr(neighbor_sets, "LARGE_SET", large)
        monkeypatch.setattr(neighbor_sets, "PRODUCT_SPEED", speed)
        used.clear()
        assert intersection_sizes(left, rows, right, others, WIDTH).tolist() == wanted
        assert bool(used) == (large <= WIDTH)


def test_no_pairs_give_empty_sets() -> None:
    sets = NeighborSets.from_pairs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 2)
    assert sets.sizes.tolist() == [0, 0]
