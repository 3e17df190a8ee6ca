from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation import evaluate, evaluate_arrays
from vicinal.evaluation.protocol import Evaluation
from vicinal.retrieval.scores import ScoreBlock


def lattice(rows: int, seed: int, dim: int = 6) -> np.ndarray:
    """Unit vectors of entries 0 and +-1/2: exact products and a great many ties."""
    rng = np.random.default_rng(seed)
    vectors = np.zeros((rows, dim))
    for row in vectors:
        row[rng.choice(dim, 4, replace=False)] = rng.choice([-0.5, 0.5], 4)
    return vectors


def clusters(rows: int, classes: int, seed: int = 0, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    vectors = rng.standard_normal((classes, dim))[labels] + 1.5 * rng.standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


MORE = ("precision@3", "found@2", "mAP@2", "MRR")


def brute_force(vectors, labels, is_query, is_gallery, groups, recall_at, coarse=None) -> tuple[dict[str, float], int]:
    """Sort everything in float64 and read the metrics off the list of relevances."""
    similarities = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    rows: dict[str, list[float]] = {}
    without = 0
    for query in np.flatnonzero(is_query):
        gallery = [
            item
            for item in np.flatnonzero(is_gallery)
            if item != query and not (labels[item] == labels[query] and groups[item] == groups[query] != -1)
        ]
        gallery.sort(key=lambda item: (-similarities[query, item], item))
        hits = [labels[item] == labels[query] for item in gallery]
        if coarse is not None:
            hits = [coarse[item] == coarse[query] for item in gallery]
        total = sum(hits)
        if not total:
            without += 1
            continue
        precisions = [hit * sum(hits[: k + 1]) / (k + 1) for k, hit in enumerate(hits)]
        for k in recall_at:
            rows.setdefault(f"recall@{k}", []).append(float(any(hits[:k])))
        rows.setdefault("mAP@R", []).append(sum(precisions[:total]) / total)
        rows.setdefault("R-precision", []).append(sum(hits[:total]) / total)
        rows.setdefault("mAP", []).append(sum(precisions) / total)
        rows.setdefault("precision@3", []).append(sum(hits[:3]) / 3)
        rows.setdefault("found@2", []).append(sum(hits[:2]) / total)
        rows.setdefault("mAP@2", []).append(sum(precisions[:2]) / min(2, total))
        rows.setdefault("MRR", []).append(1 / (hits.index(True) + 1))
    return {name: float(np.mean(values)) for name, values in rows.items()}, without


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(6, 40),
    classes=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    sides=st.booleans(),
    grouped=st.booleans(),
    chunk=st.sampled_from([None, 1, 5]),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_equals_brute_force(rows, classes, seed, sides, grouped, chunk, kind) -> None:
    rng = np.random.default_rng(seed)
    vectors, labels = lattice(rows, seed), rng.integers(0, classes, rows)
    frame = pd.DataFrame({"label": labels})
    is_query = is_gallery = np.ones(rows, dtype=bool)
    groups = np.full(rows, -1)
    if sides:  # some images are on both sides, some on neither
        is_query, is_gallery = rng.random(rows) < 0.6, rng.random(rows) < 0.7
        is_query[0] = is_gallery[:3] = True
        frame = frame.assign(is_query=is_query, is_gallery=is_gallery)
    if grouped:
        groups = rng.integers(0, 3, rows)
        frame = frame.assign(group=groups)
    wanted, without = brute_force(vectors, labels, is_query, is_gallery, groups, (1, 2))
    if not wanted:
        with pytest.raises(InputError, match="has another image of its class"):
            evaluate(vectors, Table(frame), (1, 2), chunk, metrics=MORE)
        return
    names = {"coarse": labels // 2, "coarse_2": labels // 4}  # what is left out is left out at every level
    for column, codes in names.items():
        of_level, _ = brute_force(vectors, labels, is_query, is_gallery, groups, (1, 2), codes)
        wanted |= {f"{column}/{name}": value for name, value in of_level.items()}
    result = evaluate(vectors.astype(kind), Table(frame.assign(**names)), (1, 2), chunk, metrics=MORE, hierarchy=True)
    assert result.metrics == pytest.approx(wanted, rel=1e-12)
    assert (result.queries, result.gallery) == (is_query.sum(), is_gallery.sum())
    assert result.without_positive == without
    assert result.query_rows.tolist() == np.flatnonzero(is_query).tolist()


def test_agrees_with_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    vectors, labels = clusters(400, 25)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count")
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    ours = evaluate(vectors, Table(pd.DataFrame({"label": labels}))).metrics
    assert [ours["recall@1"], ours["R-precision"], ours["mAP@R"]] == pytest.approx([theirs[name] for name in names])


def test_agrees_with_pytorch_metric_learning_where_it_divides_alike() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    vectors, labels = clusters(400, 25)
    table = Table(pd.DataFrame({"label": labels}))
    names = ("mean_average_precision", "mean_reciprocal_rank")
    for k in (5, 399):
        calculator = AccuracyCalculator(include=names, k=k)
        theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
        ours = evaluate(vectors, table, metrics=[f"mAP@{k}", "found@5", "MRR"])
        if k == 399:  # the whole ranking: all denominators are R
            assert ours.metrics["MRR"] == pytest.approx(theirs["mean_reciprocal_rank"])
            assert ours.metrics["mAP@399"] == pytest.approx(theirs["mean_average_precision"])
        else:  # cut off they divide by R all the same, so that a perfect ranking of R > k positives has less than 1
            ranks = Ranked(vectors, labels)
            assert theirs["mean_average_precision"] == pytest.approx(ranks.mean_precision_over("R"))
            assert ours.metrics["mAP@5"] == pytest.approx(ranks.mean_precision_over("min(5, R)"))
            assert ours.metrics["mAP@5"] > 1.5 * theirs["mean_average_precision"]


class Ranked:
    """All rankings by a full sort in float64, as truths [rows, rows - 1]."""

    def __init__(self, vectors: np.ndarray, labels: np.ndarray) -> None:
        scores = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
        np.fill_diagonal(scores, -np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :-1]
        self.hits = labels[order] == labels[:, None]

    def mean_precision_over(self, denominator: str) -> float:
        """The precisions at the positives among the first five, summed and divided."""
        hits, totals = self.hits[:, :5], self.hits.sum(axis=1)
        sums = (hits * hits.cumsum(axis=1) / np.arange(1, 6)).sum(axis=1)
        return float((sums / (totals if denominator == "R" else np.minimum(totals, 5))).mean())


def test_labels_above_two_to_the_24_do_not_collide() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    vectors, labels = clusters(60, 12)
    large = labels + 2**24
    ours = evaluate(vectors, Table(pd.DataFrame({"label": large}))).metrics
    assert ours == evaluate(vectors, Table(pd.DataFrame({"label": labels}))).metrics
    calculator = AccuracyCalculator(include=("precision_at_1",), k="max_bin_count")
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(large))["precision_at_1"]
    assert theirs > ours["recall@1"]  # in float32 there, in which every other of these numbers is its neighbour


def test_agrees_with_torchmetrics() -> None:
    from torchmetrics.functional.retrieval import (
        retrieval_average_precision,
        retrieval_precision,
        retrieval_r_precision,
        retrieval_recall,
        retrieval_reciprocal_rank,
    )

    vectors, labels = clusters(60, 7)
    cosines = torch.from_numpy(vectors.astype(np.float64) @ vectors.T.astype(np.float64))
    scores = cosines + 1  # of negative scores it takes none for a positive
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})), metrics=["precision@5", "found@5", "MRR"])
    theirs = {
        "precision@5": lambda scores, hits: retrieval_precision(scores, hits, top_k=5),
        "found@5": lambda scores, hits: retrieval_recall(scores, hits, top_k=5),
        "R-precision": retrieval_r_precision,
        "MRR": retrieval_reciprocal_rank,
        "mAP": retrieval_average_precision,
    }
    for name, function in theirs.items():
        wanted = []
        for row in range(60):
            others = np.delete(np.arange(60), row)
            wanted.append(float(function(scores[row, others], torch.from_numpy(labels[others] == labels[row]))))
        np.testing.assert_allclose(result.per_query[name], wanted, rtol=1e-6)
    hits = torch.from_numpy(labels == labels[0])
    assert float(retrieval_average_precision(cosines[0, 1:], hits[1:])) > 1.2 * result.per_query["mAP"][0]


def test_cmc_is_recall_at_every_k() -> None:
    vectors, labels = clusters(50, 9)
    labels[7] = 99  # without a positive
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})), recall_at=range(1, 50))
    wanted = [result.metrics[f"recall@{k}"] for k in range(1, 50)]
    np.testing.assert_allclose(result.cmc(49), wanted, rtol=1e-12)
    assert result.cmc(3).tolist() == result.cmc(49)[:3].tolist()
    assert result.first_ranks[7] == 0
    for most in (0, 51):
        with pytest.raises(InputError, match=f"CMC up to {most} is impossible with 50 gallery images"):
            result.cmc(most)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(6, 30), classes=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_a_gallery_twice_over_finds_the_same_first(rows: int, classes: int, seed: int) -> None:
    """Each image has its copy right beside it: the first positive moves from rank r to 2 r - 1, all shares stay."""
    vectors, labels = lattice(rows, seed), np.random.default_rng(seed).integers(0, classes, rows)
    labels[:2] = 0
    once = evaluate_arrays(vectors[:2], labels[:2], vectors, labels, recall_at=[1])
    twice = evaluate_arrays(vectors[:2], labels[:2], vectors.repeat(2, axis=0), labels.repeat(2), recall_at=[1])
    assert twice.first_ranks.tolist() == (2 * once.first_ranks - 1).tolist()
    assert twice.metrics["recall@1"] == once.metrics["recall@1"]
    assert twice.metrics["R-precision"] == once.metrics["R-precision"]
    assert twice.ties == 2 * once.ties


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(4, 30), classes=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_without_ties_the_order_of_the_table_does_not_matter(rows: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, labels = rng.standard_normal((rows, 5)), rng.integers(0, classes, rows)
    labels[:2] = 0
    order = rng.permutation(rows)
    first, second = (
        evaluate(vectors[rows], Table(pd.DataFrame({"label": labels[rows]})), recall_at=[1], metrics=["MRR", "found@2"])
        for rows in (np.arange(rows), order)
    )
    if first.ties:
        return
    for name, values in first.per_query.items():
        np.testing.assert_array_equal(second.per_query[name], values[order])


def test_half_precision_ranks_as_the_same_numbers_in_full() -> None:
    vectors, labels = clusters(200, 15)
    half, table = vectors.astype(np.float16), Table(pd.DataFrame({"label": labels}))
    assert evaluate(half, table).metrics == evaluate(half.astype(np.float64), table).metrics
    assert evaluate(torch.from_numpy(half), table).metrics == evaluate(half, table).metrics


def test_ties_are_reported() -> None:
    table = Table(pd.DataFrame({"label": ["a", "b", "a", "b"]}))
    result = evaluate(np.ones((4, 3)), table, recall_at=(1,))
    assert result.ties == 4  # the only positive of each has the score of two others
    assert result.to_dict()["ties"] == 4
    assert "(4 positives tied with other images)" in str(result)
    assert evaluate(np.eye(4)[[0, 1, 0, 1]], table, recall_at=(1,)).ties == 0


def test_full_average_precision_agrees_with_scikit_learn() -> None:
    vectors, labels = clusters(70, 7)  # few enough that no two similarities are equal in float32
    similarities = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    wanted = [
        average_precision_score(np.delete(labels == labels[row], row), np.delete(similarities[row], row))
        for row in range(70)
    ]
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})))
    np.testing.assert_allclose(result.per_query["mAP"], wanted, rtol=1e-9)


def test_order_of_rows_chunks_and_names_do_not_matter() -> None:
    vectors, labels = clusters(300, 30)
    whole = evaluate(vectors, Table(pd.DataFrame({"label": labels})))
    order = np.random.default_rng(1).permutation(300)
    names = np.array([f"class {label:03d}" for label in -labels])
    for embeddings, table, chunk in (
        (vectors[order], labels[order], None),
        (vectors, names, None),
        (vectors, labels, 1),
        (torch.from_numpy(vectors), labels, 77),
        (vectors * 3, labels, None),
    ):
        assert evaluate(embeddings, Table(pd.DataFrame({"label": table})), chunk=chunk).metrics == pytest.approx(
            whole.metrics
        )


def test_all_equal_embeddings_rank_in_the_order_of_the_table() -> None:
    table = Table(pd.DataFrame({"label": ["a", "b", "a", "b"]}))
    result = evaluate(np.ones((4, 3)), table, recall_at=(1, 2))
    # rankings: 1 2 3 (a: rank 2), 0 2 3 (b: rank 3), 0 1 3 (a: rank 1), 0 1 2 (b: rank 2)
    assert result.per_query["recall@1"].tolist() == [0, 0, 1, 0]
    assert result.per_query["mAP"].tolist() == [1 / 2, 1 / 3, 1, 1 / 2]


def test_duplicates_across_classes_tie() -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 33))[[0, 0, 0, 1]]
    result = evaluate(vectors, Table(pd.DataFrame({"label": ["a", "b", "a", "b"]})), recall_at=(1, 2))
    assert result.per_query["recall@1"].tolist() == [0, 0, 1, 0]


def test_one_class_is_perfect_and_singletons_are_counted() -> None:
    vectors = np.random.default_rng(0).standard_normal((6, 4))
    assert set(evaluate(vectors, Table(pd.DataFrame({"label": ["a"] * 6})), (1,)).metrics.values()) == {1.0}
    result = evaluate(vectors, Table(pd.DataFrame({"label": ["a", "a", "b", "c", "d", "e"]})), (1,))
    assert result.without_positive == 4
    assert np.isnan(result.per_query["mAP"]).tolist() == [False, False, True, True, True, True]
    assert "(4 queries without a positive left out)" in str(result)


def test_query_that_is_in_the_gallery_does_not_find_itself() -> None:
    frame = pd.DataFrame({"label": ["a", "a", "b"], "is_query": [1, 0, 0], "is_gallery": [1, 1, 1]})
    result = evaluate(np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1]]), Table(frame), recall_at=(1, 2))
    assert result.protocol == "query/gallery"
    assert result.metrics["recall@1"] == 0
    assert result.metrics["mAP"] == 0.5


def test_groups_are_left_out_only_if_the_label_is_the_same() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.01], [1.0, 0.1], [1.0, 0.2]])
    frame = pd.DataFrame({"label": ["a", "a", "b", "a"], "group": ["cam1", "cam1", "cam1", "cam2"]})
    result = evaluate(vectors, Table(frame), recall_at=(1, 2))
    assert result.per_query["recall@1"][0] == 0  # row 1 is ignored, row 2 is nearer than row 3
    assert result.per_query["recall@2"][0] == 1


def test_arrays_equal_the_table() -> None:
    vectors, labels = clusters(60, 6)
    names = labels.astype(str)
    groups = np.random.default_rng(3).integers(0, 4, 60)
    frame = pd.DataFrame({"label": names, "group": groups})
    by_table = evaluate(vectors, Table(frame))
    by_arrays = evaluate_arrays(
        vectors, names, vectors, names, exclude=np.arange(60), query_groups=groups, gallery_groups=groups
    )
    assert by_arrays.metrics == by_table.metrics


def test_gallery_of_unknown_labels_is_in_the_way() -> None:
    result = evaluate_arrays([[1.0, 0.0]] @ np.eye(2), ["a"], np.eye(2), ["zebra", "a"], recall_at=(1, 2))
    assert result.metrics["recall@1"] == 0
    assert result.metrics["recall@2"] == 1


def test_result_can_be_written_and_read() -> None:
    vectors, labels = clusters(1200, 6)
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})))
    assert isinstance(result, Evaluation)
    loaded = json.loads(json.dumps(result.to_dict()))
    assert loaded["metrics"] == result.metrics
    assert (loaded["queries"], loaded["without_positive"], loaded["protocol"]) == (1200, 0, "leave-one-out")
    lines = str(result).splitlines()
    assert lines[0] == "leave-one-out: 1,200 queries, 1,200 gallery images"
    assert lines[1] == f"recall@1      {100 * result.metrics['recall@1']:6.2f} %"


def test_memory_does_not_grow_with_the_gallery(monkeypatch) -> None:
    sizes = []
    build = ScoreBlock.__init__
    monkeypatch.setattr(
        ScoreBlock, "__init__", lambda self, *size: (build(self, *size), sizes.append(self._buffer.nbytes))[0]
    )
    vectors, labels = np.ones((600_000, 1), dtype=np.float32), np.arange(600_000) % 300_000
    result = evaluate_arrays(vectors[:100], labels[:100], vectors, labels)
    assert sizes[0] <= 64 * 2**20  # all scores of as few queries as a block can have would be 154 MB
    assert len(sizes) == 1
    # all are equal, so the positives of query i stand at the ranks i + 1 and i + 300,001
    np.testing.assert_allclose(
        result.per_query["mAP"], [(1 / (i + 1) + 2 / (i + 300_001)) / 2 for i in range(100)], rtol=1e-12
    )


def test_bad_input() -> None:
    vectors, labels = clusters(10, 2)
    table = Table(pd.DataFrame({"label": labels}))
    with pytest.raises(InputError, match="10 embeddings, but table of 3 rows"):
        evaluate(vectors, table.take([0, 1, 2]))
    with pytest.raises(InputError, match="recall@10 is impossible with 9 gallery images"):
        evaluate(vectors, table, recall_at=(1, 10))
    with pytest.raises(InputError, match="recall@0"):
        evaluate(vectors, table, recall_at=(0,))
    with pytest.raises(InputError, match=r"recall@1\.5 is impossible; k must be an integer"):
        evaluate(vectors, table, recall_at=(1.5,))  # type: ignore[arg-type]
    for chunk in (0, -1):
        with pytest.raises(InputError, match=f"chunk = {chunk} is impossible; use chunk >= 1"):
            evaluate(vectors, table, chunk=chunk)
    with pytest.raises(InputError, match="exclude names gallery row 10; the gallery has 10 rows"):
        evaluate_arrays(vectors, labels, vectors, labels, exclude=np.arange(1, 11))
    with pytest.raises(InputError, match="0 queries and 10 gallery images"):
        evaluate_arrays(vectors[:0], labels[:0], vectors, labels)
    with pytest.raises(InputError, match="10 queries and 0 gallery images"):
        evaluate_arrays(vectors, labels, vectors[:0], labels[:0])
    with pytest.raises(InputError, match=r"there is no metric 'recal@1'; use recall@K, .* MRR, with a number for K"):
        evaluate(vectors, table, metrics=["recal@1"])
    with pytest.raises(InputError, match=r"metrics is 'MRR'; give a list of names, such as \['MRR'\]"):
        evaluate(vectors, table, metrics="MRR")
    with pytest.raises(InputError, match="precision@10 is impossible with 9 gallery images"):
        evaluate(vectors, table, metrics=["precision@10"])
    with pytest.raises(InputError, match="the table has no column 'coarse'"):
        evaluate(vectors, table, hierarchy=True)
    with pytest.raises(InputError, match="coarse/recall@1: no query has another image of its coarse label"):
        evaluate(vectors, Table(pd.DataFrame({"label": labels, "coarse": range(10)})), hierarchy=True)
    with pytest.raises(InputError, match="no column 'label'"):
        evaluate(vectors, Table(pd.DataFrame({"path": [f"{row}.png" for row in range(10)]})))
    with pytest.raises(InputError, match="none of the 10 queries has another image of its class"):
        evaluate(vectors, Table(pd.DataFrame({"label": range(10)})))
    with pytest.raises(InputError, match="is_query but no is_gallery"):
        evaluate(vectors, Table(pd.DataFrame({"label": labels, "is_query": [True] * 10})))
    with pytest.raises(InputError, match="no row with is_query"):
        evaluate(vectors, Table(pd.DataFrame({"label": labels, "is_query": [False] * 10, "is_gallery": [True] * 10})))
    broken = vectors.copy()
    broken[7] = np.nan
    with pytest.raises(InputError, match="embedding 7 holds NaN"):
        evaluate(broken, table)
    with pytest.raises(InputError, match="query labels are int64, gallery labels are <U1"):
        evaluate_arrays(vectors, labels, vectors, labels.astype("<U1"))
    with pytest.raises(InputError, match="queries have 16 dimensions, the gallery has 3"):
        evaluate_arrays(vectors, labels, vectors[:, :3], labels)
