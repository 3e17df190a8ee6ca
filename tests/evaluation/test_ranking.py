from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.evaluation import ranking
from vicinal.evaluation.ranking import Relevance, positive_ranks, ranks_in_row
from vicinal.retrieval.scores import UnitVectors


def brute_force(scores: np.ndarray, positives: np.ndarray) -> list[int]:
    order = sorted(range(len(scores)), key=lambda column: (-float(scores[column]), column))
    return [rank for rank, column in enumerate(order, 1) if column in set(positives.tolist())]


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 0.25, -0.25, 1e-30, -1e-30, 1e-45, -np.inf]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=60), st.data(), st.sampled_from(["count", "sort", "own"])
)
def test_every_way_equals_a_full_sort(values: list[float], data: st.DataObject, way: str) -> None:
    scores = np.array(values, dtype=np.float32)
    columns = [column for column in range(len(values)) if np.isfinite(values[column])]
    positives = np.array(sorted(data.draw(st.sets(st.sampled_from(columns))) if columns else []), dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        if way != "own":
            patch.setattr(ranking, "_counting_is_cheaper", lambda *_: way == "count")
        assert ranks_in_row(scores, positives).tolist() == brute_force(scores, positives)


@pytest.mark.parametrize("count", [1, 3, 40, 400, 3000])
def test_long_rows_with_few_and_many_positives(count: int) -> None:
    rng = np.random.default_rng(count)
    scores = rng.standard_normal(3000).round(2).astype(np.float32)
    positives = np.sort(rng.choice(3000, count, replace=False))
    assert ranks_in_row(scores, positives).tolist() == brute_force(scores, positives)


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


@pytest.mark.parametrize("most", [1, 30, 10**6])
@pytest.mark.parametrize("chunk", [None, 1, 17])
def test_left_out_rows_take_no_rank(monkeypatch, chunk: int | None, most: int) -> None:
    monkeypatch.setattr(ranking, "MOST_RANKS", most)
    rng = np.random.default_rng(0)
    vectors = UnitVectors(rng.standard_normal((90, 8)), "embedding")
    labels, groups = rng.integers(0, 9, 90), rng.integers(-1, 3, 90)
    relevance = Relevance(labels, labels, np.arange(90), groups, groups)
    blocks = list(positive_ranks(vectors, vectors, relevance, chunk))
    assert max(len(block.ranks) for block in blocks) <= most + 30
    unit = vectors.block(0, 90).double().numpy()
    wanted = []
    for query in range(90):
        match = labels == labels[query]
        ignored = match & (groups == groups[query]) & (groups[query] >= 0)
        ignored[query] = True
        left = np.flatnonzero(~ignored)
        wanted.append(brute_force((unit @ unit[query])[left], np.flatnonzero(match[left])))
    assert np.concatenate([block.ranks for block in blocks]).tolist() == [rank for ranks in wanted for rank in ranks]
    assert np.concatenate([block.counts for block in blocks]).tolist() == [len(ranks) for ranks in wanted]
