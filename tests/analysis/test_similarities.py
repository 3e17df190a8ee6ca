import numpy as np
import pandas as pd
import pytest

from tests.analysis.test_neighbors import cosines
from tests.report.page.cases import Case
from vicinal.analysis import PairSimilarities, pair_similarities
from vicinal.data import Table


def test_pairs_are_of_their_kind(noisy: Case) -> None:
    pairs = pair_similarities(noisy.vectors, noisy.table, num_pairs=5000, seed=3)
    scores, same = cosines(noisy.vectors.astype(np.float64)), noisy.table.labels[:, None] == noisy.table.labels
    of_one = scores[same & ~np.eye(60, dtype=bool)]
    assert np.isin(pairs.positive.round(4), of_one.round(4)).mean() > 0.95
    assert pairs.positive.mean() == pytest.approx(of_one.mean(), abs=0.02)
    assert pairs.negative.mean() == pytest.approx(scores[~same].mean(), abs=0.02)
    again = pair_similarities(noisy.vectors, noisy.table, num_pairs=5000, seed=3)
    assert (again.positive == pairs.positive).all()


def test_pairs_of_one_group_are_not_drawn() -> None:
    vectors = np.eye(4)[[0, 0, 1, 1]]
    table = Table(pd.DataFrame({"label": [0, 0, 0, 0], "group": [0, 0, 1, 1]}))
    pairs = pair_similarities(vectors, table, num_pairs=200)
    assert set(pairs.positive) == {0.0}
    assert len(pairs.negative) == 0
    alone = Table(table.frame.assign(group=-1))
    assert set(pair_similarities(vectors, alone, num_pairs=200).positive) == {0.0, 1.0}
    twice = Table(
        pd.DataFrame({"path": ["/a", "/b"] * 2, "label": 0, "is_query": [1, 1, 0, 0]}).astype({"is_query": bool})
    )
    twice = Table(twice.frame.assign(is_gallery=~twice.frame["is_query"]))
    assert set(pair_similarities(np.eye(2)[[0, 1, 0, 1]], twice, num_pairs=200).positive) == {0.0}


def test_histogram_fractions() -> None:
    rng = np.random.default_rng(0)
    same = PairSimilarities(*[rng.uniform(size=400_000) for _ in range(2)]).histogram(num_bins=10)
    assert same.positive.sum() == pytest.approx(1)
    assert same.overlap == pytest.approx(1, abs=0.01)
    apart = PairSimilarities(np.full(5, 0.9), np.full(9, 0.1)).histogram()
    assert (apart.overlap, apart.negative[0], apart.positive[-1]) == (0, 1, 1)
    assert PairSimilarities(np.full(5, 0.5), np.full(5, 0.5)).histogram().overlap == 1
    assert PairSimilarities(np.empty(0), np.empty(0)).histogram().overlap == 0
