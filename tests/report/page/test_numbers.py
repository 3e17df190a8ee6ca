"""The numbers on a page, against counting by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import skew
from threadpoolctl import threadpool_limits

from tests.report.page.cases import Case, case_of
from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.evaluation import evaluate
from vicinal.report.page.classes import class_scores
from vicinal.report.page.confusions import confusion_matrix, confusions
from vicinal.report.page.duplicates import duplicates
from vicinal.report.page.hubs import hubs
from vicinal.report.page.label_errors import label_errors
from vicinal.report.page.map import SIDE, drawn_rows, embedding_map
from vicinal.report.page.pairs import PairSimilarities, histogram, pair_similarities
from vicinal.report.page.queries import chosen_queries
from vicinal.report.page.scores import recall_name
from vicinal.report.page.search import Neighborhood, neighborhood


@pytest.fixture(scope="module")
def noisy() -> Case:
    """Sixty vectors of six classes that partly overlap."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 10)
    return case_of(rng.normal(size=(6, 8))[labels] + rng.normal(size=(60, 8)), labels)


def found_in(case: Case, k: int = 10) -> Neighborhood:
    return neighborhood(case.vectors, case.table, case.evaluation, k)


def cosines(vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def test_neighbors_are_those_of_a_full_sort(noisy: Case) -> None:
    found = found_in(noisy)
    scores = cosines(noisy.vectors.astype(np.float64))
    np.fill_diagonal(scores, -np.inf)
    assert (found.found == np.argsort(-scores, axis=1)[:, :10]).all()
    assert (found.right == (noisy.table.labels[found.found] == noisy.table.labels[:, None])).all()
    assert found.right[:, 0].mean() == pytest.approx(noisy.evaluation.metrics["recall@1"])


@pytest.mark.parametrize("least", [0, -1])
def test_neighbors_of_queries_in_a_gallery_leave_out_their_own_group(least: int) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"label": np.arange(40) % 4, "group": least + np.arange(40) % 3})
    frame["is_query"], frame["is_gallery"] = np.arange(40) < 15, np.arange(40) >= 10
    table, vectors = Table(frame), rng.normal(size=(40, 5))
    evaluation = evaluate(vectors, table, recall_at=[1])
    found = neighborhood(vectors, table, evaluation)
    scores = cosines(vectors)
    for place, query in enumerate(found.queries):
        same = (
            (frame.label == frame.label[query]) & (frame.group == frame.group[query]) & (frame.group >= 0)
        ).to_numpy()
        allowed = np.flatnonzero(frame.is_gallery & ~same & (frame.index != query))
        assert found.found[place].tolist() == allowed[np.argsort(-scores[query, allowed])][: found.k].tolist()
    counted = ~np.isnan(evaluation.per_query["recall@1"])
    assert (found.right[counted, 0] == evaluation.per_query["recall@1"][counted]).all()


def test_few_images_have_few_neighbors() -> None:
    case = case_of(np.eye(3), [0, 0, 1])
    assert found_in(case).k == 2


def test_what_does_not_belong_together_is_refused(noisy: Case) -> None:
    with pytest.raises(InputError, match="59 embeddings, but a table of 60 rows"):
        neighborhood(noisy.vectors[1:], noisy.table, noisy.evaluation)
    with pytest.raises(InputError, match="query in row 59; the table has 50"):
        neighborhood(noisy.vectors[:50], noisy.table.take(range(50)), noisy.evaluation)


def test_class_scores_are_means(noisy: Case) -> None:
    scores = class_scores(noisy.table.labels, noisy.evaluation)
    assert [each.recall for each in scores] == sorted(each.recall for each in scores)
    for each in scores:
        mine = noisy.table.labels == each.label
        assert each.recall == pytest.approx(noisy.evaluation.per_query["recall@1"][mine].mean())
        assert each.score == pytest.approx(noisy.evaluation.per_query["mAP@R"][mine].mean())
        assert each.queries == 10


def test_confusions_count_first_neighbors(noisy: Case) -> None:
    found, labels = found_in(noisy), noisy.table.labels
    top, pairs = confusions(found, labels, most=100)
    assert len(top) == pairs
    assert sum(each.queries for each in top) == (~found.right[:, 0]).sum()
    counts = [each.queries for each in top]
    assert counts == sorted(counts, reverse=True)
    for each in top:
        mine = (labels == each.label) & (labels[found.found[:, 0]] == each.found)
        assert each.queries == mine.sum()
        assert each.share == mine.sum() / 10
        assert found.scores[each.query, 0] == found.scores[mine, 0].max()
        assert found.found[each.query, 0] == each.neighbor


def test_matrix_of_confusions_counts_first_neighbors(noisy: Case) -> None:
    found, labels = found_in(noisy), noisy.table.labels
    counts = confusion_matrix(found, labels, 6)
    assert counts.sum() == 60
    assert np.trace(counts) == found.right[:, 0].sum()
    for each in confusions(found, labels, most=100)[0]:
        assert counts[each.label, each.found] == each.queries


def test_best_and_worst_queries(noisy: Case) -> None:
    found, scores = found_in(noisy), noisy.evaluation.per_query["mAP@R"]
    best, worst = chosen_queries(found, noisy.evaluation, noisy.table.labels, most=6)
    assert sorted(noisy.table.labels[worst]) == list(range(6))  # one of each class
    for label in range(6):
        mine = noisy.table.labels == label
        assert scores[worst][noisy.table.labels[worst] == label] == scores[mine].min()
        assert scores[best][noisy.table.labels[best] == label] == scores[mine].max()


def test_hubs_count_lists(noisy: Case) -> None:
    found = found_in(noisy)
    result = hubs(found, most=5)
    counts = np.array([(found.found == row).sum() for row in range(60)])
    assert [each.lists for each in result.top] == sorted(counts, reverse=True)[:5]
    assert [counts[each.row] for each in result.top] == [each.lists for each in result.top]
    assert result.top[0].right == found.right[found.found == result.top[0].row].mean()
    assert (result.expected, result.never) == (10, (counts == 0).sum())
    assert result.skewness == pytest.approx(skew(counts))


def test_duplicates_are_named_once_whoever_finds_whom() -> None:
    case = case_of([[1, 0], [0, 1], [2, 0], [0.9, 0.1]], [0, 1, 0, 1])
    pairs = duplicates(found_in(case))
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 2)]
    assert pairs[0].score == pytest.approx(1)


def test_label_errors_need_all_votes() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 8)
    vectors = np.eye(2)[labels] + rng.normal(0, 0.02, (16, 2))
    given = labels.copy()
    given[3] = 1
    errors = label_errors(found_in(case_of(vectors, given)), given)
    assert [error.row for error in errors] == [3]
    assert len(errors[0].votes) == 5
    assert (given[errors[0].votes] == 0).all()


@pytest.mark.parametrize(("images", "accused"), [(2, False), (3, True)])
def test_small_classes_accuse_with_three_images(images: int, accused: bool) -> None:
    labels = np.array([1] + [0] * images + [1] * 6)
    vectors = np.eye(2)[np.array([0] + [0] * images + [1] * 6)] + np.random.default_rng(0).normal(
        0, 0.01, (len(labels), 2)
    )
    errors = label_errors(found_in(case_of(vectors, labels)), labels)
    assert (0 in [error.row for error in errors]) is accused


def test_names_of_metrics_fall_back(noisy: Case) -> None:
    plain = evaluate(noisy.vectors, noisy.table, recall_at=[4, 2])
    assert recall_name(plain) == "recall@2"
    assert recall_name(evaluate(noisy.vectors, noisy.table, recall_at=[])) == "mAP@R"


def test_pairs_are_of_their_kind(noisy: Case) -> None:
    every = np.arange(60)
    pairs = pair_similarities(noisy.vectors, noisy.table, every, every, pairs=5000, seed=3)
    scores, same = cosines(noisy.vectors.astype(np.float64)), noisy.table.labels[:, None] == noisy.table.labels
    of_one = scores[same & ~np.eye(60, dtype=bool)]
    assert np.isin(pairs.positive.round(4), of_one.round(4)).mean() > 0.95
    assert pairs.positive.mean() == pytest.approx(of_one.mean(), abs=0.02)
    assert pairs.negative.mean() == pytest.approx(scores[~same].mean(), abs=0.02)
    again = pair_similarities(noisy.vectors, noisy.table, every, every, pairs=5000, seed=3)
    assert (again.positive == pairs.positive).all()


def test_pairs_of_one_group_are_not_drawn() -> None:
    vectors = np.eye(4)[[0, 0, 1, 1]]
    table = Table(pd.DataFrame({"label": [0, 0, 0, 0], "group": [0, 0, 1, 1]}))
    pairs = pair_similarities(vectors, table, np.arange(4), np.arange(4), pairs=200)
    assert set(pairs.positive) == {0.0}
    assert len(pairs.negative) == 0
    alone = Table(table.frame.assign(group=-1))
    assert set(pair_similarities(vectors, alone, np.arange(4), np.arange(4), pairs=200).positive) == {0.0, 1.0}


def test_histogram_shares() -> None:
    rng = np.random.default_rng(0)
    same = histogram(PairSimilarities(*[rng.uniform(size=400_000) for _ in range(2)]), bins=10)
    assert same.positive.sum() == pytest.approx(1)
    assert same.overlap == pytest.approx(1, abs=0.01)
    apart = histogram(PairSimilarities(np.full(5, 0.9), np.full(9, 0.1)))
    assert (apart.overlap, apart.negative[0], apart.positive[-1]) == (0, 1, 1)
    assert histogram(PairSimilarities(np.full(5, 0.5), np.full(5, 0.5))).overlap == 1


def test_map_fills_its_square_and_keeps_neighbors_near(noisy: Case) -> None:
    apart = np.eye(6)[noisy.table.labels] + np.random.default_rng(0).normal(0, 0.02, (60, 6))
    drawn = embedding_map(apart, noisy.table.labels, np.arange(60))
    assert drawn.places.min() == 0
    assert drawn.places.max() == SIDE
    distances = np.linalg.norm(drawn.places[:, None] - drawn.places, axis=2) + np.eye(60) * 1e9
    assert (noisy.table.labels[distances.argmin(axis=1)] == noisy.table.labels).all()


def test_map_does_not_depend_on_the_number_of_threads() -> None:
    vectors = np.random.default_rng(0).normal(size=(300, 2000)).astype(np.float32)
    places = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            places.append(embedding_map(vectors, np.arange(300) % 9, np.arange(300)).places)
    assert (places[0] == places[1]).all()


def test_map_of_many_has_whole_classes() -> None:
    labels = np.repeat(np.arange(1000), 5)
    rows = drawn_rows(labels, np.arange(5000), images=200, seed=0)
    assert len(rows) == 200
    assert (np.diff(rows) > 0).all()
    assert set(np.unique(labels[rows], return_counts=True)[1]) == {5}
    assert (rows == drawn_rows(labels, np.arange(5000), images=200, seed=0)).all()
    assert (rows != drawn_rows(labels, np.arange(5000), images=200, seed=1)).any()


def test_map_of_large_classes_has_forty_of_them() -> None:
    rows = drawn_rows(np.repeat(np.arange(100), 200), np.arange(20_000), images=400, seed=0)
    assert set(np.unique(rows // 200, return_counts=True)[1]) == {10}


@pytest.mark.parametrize("vectors", [np.eye(4), np.ones((20, 3))])
def test_no_map_of_few_or_of_equal_ones(vectors: np.ndarray) -> None:
    assert embedding_map(vectors, np.zeros(len(vectors), dtype=np.int64), np.arange(len(vectors))) is None


def test_map_of_one_dimension() -> None:
    vectors = np.array([[1.0], [-1.0]] * 10)
    assert embedding_map(vectors, np.arange(20) % 2, np.arange(20)) is not None
