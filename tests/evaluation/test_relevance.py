from __future__ import annotations

import numpy as np
import pytest

from vicinal.evaluation.relevance import Relevance


def test_relevance() -> None:
    labels = np.array([0, 1, 0, 0, 0, -1, -1])
    groups = np.array([5, 5, 5, 6, -1, -1, -1])
    relevance = Relevance(labels, labels, np.arange(7), groups, groups)
    assert relevance.positives(0).tolist() == [3, 4]
    assert relevance.ignored(0).tolist() == [0, 2]  # row 1 is of the same group but no match: it stays in the way
    assert relevance.positives(4).tolist() == [0, 2, 3]
    assert relevance.ignored(4).tolist() == [4]
    assert relevance.positives(5).tolist() == []
    assert relevance.ignored(5).tolist() == [5]
    assert relevance.sizes().tolist() == [4, 1, 4, 4, 4, 0, 0]


def test_a_coarse_level_leaves_out_what_the_fine_one_does() -> None:
    labels, groups = np.array([0, 0, 0, 1, 1, 2]), np.array([5, 5, 6, 5, 5, 5])
    fine = Relevance(labels, labels, np.arange(6), groups, groups)
    coarse = Relevance(labels // 2, labels // 2, ranking=fine)
    assert fine.positives(0).tolist() == [2]
    assert coarse.positives(0).tolist() == [2, 3, 4]  # of other classes, so that their group does not matter
    assert coarse.ignored(0).tolist() == fine.ignored(0).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("nested", [True, False])
def test_what_is_left_out_all_at_once(seed: int, nested: bool) -> None:
    rng = np.random.default_rng(seed)
    labels, groups = rng.integers(-1, 4, 30), rng.integers(-1, 3, 30)
    exclude = np.arange(12) + 18 if nested else rng.integers(-1, 18, 12)
    coarse = labels // 2 if nested else rng.integers(-1, 2, 30)
    fine = Relevance(labels[18:], labels, exclude, groups[18:], groups)
    for relevance, codes in ((fine, labels), (Relevance(coarse[18:], coarse, ranking=fine), coarse)):
        queries, rows = np.indices((12, 30))
        left_out = relevance.is_left_out(queries, rows)
        others = np.zeros((12, 30), dtype=bool)
        others[relevance.others_left_out()] = True
        for query in range(12):
            ignored = relevance.ignored(query)
            assert np.flatnonzero(left_out[query]).tolist() == ignored.tolist()
            other = (
                ignored[codes[ignored] != codes[18 + query]]
                if codes[18 + query] >= 0 and sum(codes == codes[18 + query])
                else ignored[:0]
            )
            assert np.flatnonzero(others[query]).tolist() == other.tolist()
        assert (np.diff(relevance.others_left_out()[0]) >= 0).all()
    assert not nested or not len(fine.others_left_out()[0])
