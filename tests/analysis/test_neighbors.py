"""Neighbors of queries and what is read off them, against counting by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import skew

from tests.report.page.cases import Case, case_of
from vicinal.analysis import (
    QueryNeighbors,
    confusion_matrix,
    confusions,
    hubness,
    label_errors,
    near_duplicates,
    query_neighbors,
)
from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.utils.errors import InputError


def found_in(case: Case, k: int = 10) -> QueryNeighbors:
    return query_neighbors(case.vectors, case.table, k)


def cosines(vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def test_neighbors_are_those_of_a_full_sort(noisy: Case) -> None:
    found = found_in(noisy)
    scores = cosines(noisy.vectors.astype(np.float64))
    np.fill_diagonal(scores, -np.inf)
    assert (found.ids == np.argsort(-scores, axis=1)[:, :10]).all()
    assert (found.same_class == (noisy.table.labels[found.ids] == noisy.table.labels[:, None])).all()
    assert found.same_class[:, 0].mean() == pytest.approx(noisy.evaluation.metrics["recall@1"])
    assert (found.num_positives == 9).all()
    assert [found.index(row) for row in (0, 59)] == [0, 59]


@pytest.mark.parametrize("least", [0, -1])
def test_neighbors_of_queries_in_a_gallery_leave_out_their_own_group(least: int) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"label": np.arange(40) % 4, "group": least + np.arange(40) % 3})
    frame["is_query"], frame["is_gallery"] = np.arange(40) < 15, np.arange(40) >= 10
    table, vectors = Table(frame), rng.normal(size=(40, 5))
    evaluation = evaluate(vectors, table, recall_at=[1])
    found = query_neighbors(vectors, table)
    scores = cosines(vectors)
    for at, query in enumerate(found.queries):
        of_class = frame.label == frame.label[query]
        same = (of_class & (frame.group == frame.group[query]) & (frame.group >= 0)).to_numpy()
        allowed = np.flatnonzero(frame.is_gallery & ~same & (frame.index != query))
        assert found.ids[at].tolist() == allowed[np.argsort(-scores[query, allowed])][: found.k].tolist()
        assert found.num_positives[at] == of_class[allowed].sum()
    counted = ~np.isnan(evaluation.per_query["recall@1"])
    assert (found.same_class[counted, 0] == evaluation.per_query["recall@1"][counted]).all()


def test_an_image_does_not_find_itself_by_its_path() -> None:
    frame = pd.DataFrame({"label": [0, 0, 1, 0], "path": ["/a", "/b", "/c", "/a"]})
    table = Table(frame.assign(is_query=[1, 0, 0, 0], is_gallery=[0, 1, 1, 1]))
    found = query_neighbors(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [1.0, 0.0]]), table)
    assert (found.ids.tolist(), found.num_positives.tolist()) == ([[1, 2]], [1])
    relabeled = Table(table.frame.assign(label=[0, 0, 1, 1]))
    assert query_neighbors(np.eye(4), relabeled).num_positives.tolist() == [1]


def test_what_does_not_belong_together_is_refused(noisy: Case) -> None:
    with pytest.raises(InputError, match="59 embeddings, but a table of 60 rows"):
        query_neighbors(noisy.vectors[1:], noisy.table)
    with pytest.raises(InputError, match="column is_query but no is_gallery"):
        query_neighbors(noisy.vectors, Table(noisy.table.frame.assign(is_query=True)))
    alone = noisy.table.frame.assign(is_query=np.arange(60) == 3, is_gallery=np.arange(60) == 3)
    with pytest.raises(InputError, match="no query has a gallery image to find"):
        query_neighbors(noisy.vectors, Table(alone))


def test_confusions_count_first_neighbors(noisy: Case) -> None:
    found, labels = found_in(noisy), noisy.table.labels
    pairs = confusions(found)
    assert pairs["num_queries"].sum() == (~found.same_class[:, 0]).sum()
    assert pairs["num_queries"].is_monotonic_decreasing
    assert not pairs.duplicated(["label", "nearest_label"]).any()
    for each in pairs.itertuples():
        mine = (labels == each.label) & (labels[found.ids[:, 0]] == each.nearest_label)
        assert each.num_queries == mine.sum()
        assert each.fraction == mine.sum() / 10
        assert each.similarity == found.scores[each.query, 0] == found.scores[mine, 0].max()
        assert found.ids[each.query, 0] == each.neighbor


def test_queries_without_positives_are_not_confused() -> None:
    found = found_in(case_of([[1, 0], [0.9, 0.1], [0.95, 0.05]], [0, 0, 1]))
    assert found.k == 2
    assert confusions(found)[["label", "nearest_label", "num_queries"]].to_numpy().tolist() == [[0, 1, 2]]
    assert confusion_matrix(found).to_numpy().tolist() == [[0, 2], [0, 0]]
    pure = found_in(case_of(np.eye(2)[[0, 0, 1, 1]], list("aabb")))
    assert confusions(pure).empty
    assert list(confusions(pure)) == list(confusions(found))


def test_hubs_count_lists(noisy: Case) -> None:
    found = found_in(noisy)
    result = hubness(found)
    counts = np.array([(found.ids == row).sum() for row in range(60)])
    top = result.occurrences
    assert top["k_occurrence"].tolist() == sorted(counts, reverse=True)
    assert counts[top["row"]].tolist() == top["k_occurrence"].tolist()
    assert top["same_class_fraction"][0] == found.same_class[found.ids == top["row"][0]].mean()
    assert (result.mean, result.num_antihubs) == (10, (counts == 0).sum())
    assert result.skewness == pytest.approx(skew(counts))
    assert hubness(found_in(noisy, k=59)).skewness == 0


def test_duplicates_are_named_once_whoever_finds_whom() -> None:
    case = case_of([[1, 0], [0, 1], [2, 0], [0.9, 0.1]], [0, 1, 0, 1])
    pairs = near_duplicates(found_in(case))
    assert pairs[["first", "second", "same_label"]].to_numpy().tolist() == [[0, 2, True]]
    assert pairs["similarity"][0] == pytest.approx(1)
    assert len(near_duplicates(found_in(case), threshold=0.9)) == 3


def test_label_errors_are_those_of_the_definition_most_similar_first() -> None:
    """Three clusters, four labels exchanged; found by loops over all similarities."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 12)
    vectors = np.eye(3)[labels] + 0.15 * rng.standard_normal((36, 3))
    given = labels.copy()
    given[[2, 15, 20, 30]] = [1, 2, 0, 0]
    neighbors = query_neighbors(vectors, Table(pd.DataFrame({"label": given})), k=11)
    found = label_errors(neighbors, num_votes=5)
    assert set(label_errors(neighbors, num_votes=15)["num_votes"]) <= {9, 10, 11}  # of all images of the class
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = []
    for query in range(36):
        scores = unit[query] @ unit.T
        nearest = sorted(set(range(36)) - {query}, key=lambda row: -scores[row])[:5]
        voted = {int(given[row]) for row in nearest}
        if len(voted) == 1 and voted != {int(given[query])}:
            expected.append((query, given[query], voted.pop(), np.mean(scores[nearest])))
    expected.sort(key=lambda each: -each[3])
    assert len(expected) >= 2
    assert found["row"].tolist() == [query for query, *_ in expected]
    assert found["label"].tolist() == [label for _, label, *_ in expected]
    assert found["suggested_label"].tolist() == [suggested for *_, suggested, _ in expected]
    np.testing.assert_allclose(found["similarity"], [similarity for *_, similarity in expected], rtol=1e-5)


@pytest.mark.parametrize(("images", "accused"), [(2, False), (3, True)])
def test_small_classes_accuse_with_three_images(images: int, accused: bool) -> None:
    labels = np.array([1] + [0] * images + [1] * 6)
    near = np.array([0] + [0] * images + [1] * 6)
    vectors = np.eye(2)[near] + np.random.default_rng(0).normal(0, 0.01, (len(labels), 2))
    errors = label_errors(found_in(case_of(vectors, labels)))
    assert (0 in errors["row"].tolist()) is accused
