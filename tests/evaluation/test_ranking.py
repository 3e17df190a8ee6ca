from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.evaluation import ranking
from vicinal.evaluation.ranking import Relevance, count_before, level_ranks, positive_ranks
from vicinal.retrieval import scores as scores_module
from vicinal.retrieval.scores import ScoreBlock, UnitVectors


def brute_force(scores: np.ndarray, positives: np.ndarray) -> list[int]:
    order = sorted(range(len(scores)), key=lambda column: (-float(scores[column]), column))
    return [rank for rank, column in enumerate(order, 1) if column in set(positives.tolist())]


def ranks_in_parts(scores: np.ndarray, positives: np.ndarray, cut: int) -> list[int]:
    before = sum(
        count_before(part, scores[positives], positives - start)[0]
        for part, start in ((scores[:cut], 0), (scores[cut:], cut))
    )
    return sorted((before + 1).tolist())


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
            patch.setattr(ranking, "_counting_is_cheaper", lambda positives, _: way == "count" or not positives)
        cut = data.draw(st.integers(0, len(values)))
        assert ranks_in_parts(scores, positives, cut) == brute_force(scores, positives)
        equal = count_before(scores, scores[positives], positives)[1]
        assert equal.tolist() == [int((scores == scores[column]).sum()) for column in positives]


@pytest.mark.parametrize("count", [1, 3, 40, 400, 3000])
def test_long_rows_with_few_and_many_positives(count: int) -> None:
    rng = np.random.default_rng(count)
    scores = rng.standard_normal(3000).round(2).astype(np.float32)
    positives = np.sort(rng.choice(3000, count, replace=False))
    assert ranks_in_parts(scores, positives, 1234) == brute_force(scores, positives)


@pytest.mark.parametrize("budget", [2**26, 2**20])
def test_levels_share_one_pass(monkeypatch, budget: int) -> None:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((9000, 3)).round(1)
    queries, gallery = UnitVectors(array[:70], "query"), UnitVectors(array, "gallery vector")
    labels, groups = rng.integers(0, 40, 9000), rng.integers(-1, 3, 9000)
    fine = Relevance(labels[:70], labels, np.arange(70), groups[:70], groups)
    levels = [fine, *(Relevance(labels[:70] // n, labels // n, ranking=fine) for n in (4, 100))]
    filled = []
    fill = ScoreBlock.fill
    monkeypatch.setattr(ScoreBlock, "fill", lambda self, *given: (filled.append(given[2:]), fill(self, *given))[1])
    monkeypatch.setattr(scores_module, "SCORE_BYTES", budget)
    blocks = list(level_ranks(queries, gallery, levels))
    passes = len(filled)
    for number, relevance in enumerate(levels):
        filled.clear()
        alone = list(positive_ranks(queries, gallery, relevance))
        assert len(filled) == passes
        for name in ("ranks", "counts"):
            wanted = np.concatenate([getattr(ranks, name) for ranks in alone])
            np.testing.assert_array_equal(np.concatenate([getattr(block[number], name) for block in blocks]), wanted)
        assert sum(block[number].ties for block in blocks) == sum(ranks.ties for ranks in alone)
    assert blocks[0][0].ties > blocks[0][2].ties == 0  # all are of one class at the last level


def test_levels_are_cut_where_any_of_them_has_too_many_positives(monkeypatch) -> None:
    monkeypatch.setattr(ranking, "MOST_RANKS", 5)
    fine = Relevance(np.array([0, 1, 1]), np.array([0, 0, 1, 1]))
    coarse = Relevance(np.zeros(3, dtype=np.int64), np.zeros(4, dtype=np.int64), ranking=fine)
    assert list(ranking._blocks([fine], 3, None)) == [(0, 2), (2, 3)]
    assert list(ranking._blocks([fine, coarse], 3, None)) == [(0, 1), (1, 2), (2, 3)]


def test_a_coarse_level_leaves_out_what_the_fine_one_does() -> None:
    labels, groups = np.array([0, 0, 0, 1, 1, 2]), np.array([5, 5, 6, 5, 5, 5])
    fine = Relevance(labels, labels, np.arange(6), groups, groups)
    coarse = Relevance(labels // 2, labels // 2, ranking=fine)
    assert fine.positives(0).tolist() == [2]
    assert coarse.positives(0).tolist() == [2, 3, 4]  # of other classes, so that their group does not matter
    assert coarse.ignored(0).tolist() == fine.ignored(0).tolist() == [0, 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(1, 5), st.integers(0, 10**6), st.booleans())
def test_ties_are_positives_level_with_something_else(rows: int, classes: int, seed: int, in_parts: bool) -> None:
    rng = np.random.default_rng(seed)
    array = np.eye(4)[rng.integers(0, 4, rows)]
    labels = rng.integers(0, classes, rows)
    vectors = UnitVectors(array, "embedding")
    with pytest.MonkeyPatch.context() as patch:
        if in_parts:
            patch.setattr(ranking, "_block_size", lambda *_: (7, 5))
        found = sum(
            ranks.ties for ranks in positive_ranks(vectors, vectors, Relevance(labels, labels, np.arange(rows)))
        )
    scores = array @ array.T
    wanted = sum(
        any(labels[other] != labels[query] and scores[query, other] == scores[query, column] for other in range(rows))
        for query in range(rows)
        for column in range(rows)
        if column != query and labels[column] == labels[query]
    )
    assert found == wanted


def test_blocks_hold_all_queries_and_few_positives(monkeypatch) -> None:
    monkeypatch.setattr(ranking, "MOST_RANKS", 5)
    relevance = Relevance(np.array([0, 1, 0, 2, 2, -1, 3, 1]), np.array([0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2]))
    # positives: 3 1 3 7 7 0 0 1; seven are more than may be held, but of one query
    assert list(relevance.blocks(3)) == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 8)]
    assert list(relevance.blocks(2)) == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 7), (7, 8)]


def test_large_gallery_comes_in_parts_with_the_same_ranks(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((9000, 3)).round(1)  # a great many ties
    queries, gallery = UnitVectors(array[:70], "query"), UnitVectors(array, "gallery vector")
    labels, groups = rng.integers(0, 40, 9000), rng.integers(-1, 3, 9000)
    relevance = Relevance(labels[:70], labels, np.arange(70), groups[:70], groups)
    whole = list(positive_ranks(queries, gallery, relevance))
    sizes = []
    build = ScoreBlock.__init__
    monkeypatch.setattr(ScoreBlock, "__init__", lambda self, *size: (sizes.append(size[:2]), build(self, *size))[1])
    monkeypatch.setattr(scores_module, "SCORE_BYTES", 2**20)
    parts = list(positive_ranks(queries, gallery, relevance))
    assert sizes == [(70, 4096)]
    for name in ("ranks", "counts"):
        wanted, found = (np.concatenate([getattr(block, name) for block in blocks]) for blocks in (whole, parts))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("chunk", [None, 1, 64, 1000, 4096])
@pytest.mark.parametrize("gallery", [1, 4095, 100_000, 262_144, 262_145, 2_000_000, 10**9])
@pytest.mark.parametrize("queries", [1, 70, 10**6])
def test_scores_fit_the_budget_whatever_the_gallery(queries: int, gallery: int, chunk: int | None) -> None:
    rows, columns = ranking._block_size(queries, gallery, chunk)
    assert 4 * -(-rows // 64) * 64 * -(-columns // 256) * 256 <= scores_module.SCORE_BYTES
    assert columns == gallery or columns % scores_module.BLOCK_ROWS == 0
    if chunk is None:
        assert columns == gallery or gallery > 262_144 or queries == 70


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
