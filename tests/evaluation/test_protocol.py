import numpy as np
import pandas as pd
import pytest

from tests.evaluation.cases import clusters
from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.evaluation import Evaluation, coarse_columns, evaluate, evaluate_arrays
from vicinal.retrieval.scores import ScoreBuffer
from vicinal.utils.errors import InputError


def test_memory_does_not_grow_with_the_gallery(monkeypatch) -> None:
    sizes = []
    build = ScoreBuffer.__init__
    monkeypatch.setattr(
        ScoreBuffer, "__init__", lambda self, *size: (build(self, *size), sizes.append(self._buffer.nbytes))[0]
    )
    vectors, labels = np.ones((600_000, 1), dtype=np.float32), np.arange(600_000) % 300_000
    result = evaluate_arrays(vectors[:100], labels[:100], vectors, labels)
    assert 0 < sum(sizes) <= 64 * 2**20  # all scores of as few queries as a block can have would be 154 MB
    # all are equal, so the positives of query i stand at the ranks i + 1 and i + 300,001
    np.testing.assert_allclose(
        result.per_query["mAP"], [(1 / (i + 1) + 2 / (i + 300_001)) / 2 for i in range(100)], rtol=1e-12
    )


def test_a_negative_group_is_none() -> None:
    vectors, labels = clusters(40, 5)
    groups = np.arange(40) % 3 - 1
    itself, alone = np.arange(40), np.where(groups < 0, 100 + np.arange(40), groups)
    first, second, objects = (
        evaluate_arrays(vectors, labels, vectors, labels, exclude_self=itself, query_groups=each, gallery_groups=each)
        for each in (groups, alone, groups.astype(object))
    )
    by_table = evaluate(vectors, Table(pd.DataFrame({"label": labels, "group": groups})))
    assert first.metrics == second.metrics == objects.metrics == by_table.metrics


def test_a_negative_label_is_a_class() -> None:
    vectors, labels = clusters(40, 5)
    named = [
        evaluate_arrays(vectors, each, vectors, each) for each in (labels, labels - 1, (labels - 1).astype(object))
    ]
    by_table = [evaluate(vectors, Table(pd.DataFrame({"label": each}))) for each in (labels, labels - 1)]
    assert named[0].metrics == named[1].metrics == named[2].metrics
    assert by_table[0].metrics == by_table[1].metrics


def test_bad_input() -> None:
    vectors, labels = clusters(10, 2)
    table = Table(pd.DataFrame({"label": labels}))
    refused_call("10 embeddings, but a table of 3 rows", lambda: evaluate(vectors, table.take([0, 1, 2])))
    refused_call("recall@10 is out of range with 9 gallery images", evaluate, vectors, table, recall_at=(1, 10))
    for name in ("recall", "recall@x", "recall@1.5", "MRR@3", "map", "", "@3", "recall@07"):
        refused_call(r"unknown metric .*; use recall@K, pos", evaluate, vectors, table, metrics=[name])
    for name in ("precision@0", "mAP@10", "positives_recall@-1"):
        message = f"{name} is out of range with 9 gallery images; use k from 1 to 9"
        refused_call(message, evaluate, vectors, table, metrics=[name])
    for chunk in (0, -1, 2.5, "3"):
        refused_call(
            f"chunk_size = {chunk!r} is invalid; use an integer >= 1", evaluate, vectors, table, chunk_size=chunk
        )
    refused_call("0 queries and 10 gallery images", evaluate_arrays, vectors[:0], labels[:0], vectors, labels)
    refused_call(r"metrics is 'MRR'; give a list of names, such as \['MRR'\]", evaluate, vectors, table, metrics="MRR")
    refused_call("the table has no column 'coarse'", evaluate, vectors, table, hierarchy=True)
    with pytest.raises(InputError, match="coarse/recall@1: no query has another image of its coarse label"):
        evaluate(vectors, Table(pd.DataFrame({"label": labels, "coarse": range(10)})), hierarchy=True)
    with pytest.raises(InputError, match="none of the 10 queries has another image of its class"):
        evaluate(vectors, Table(pd.DataFrame({"label": range(10)})))
    with pytest.raises(InputError, match="is_query but no is_gallery"):
        evaluate(vectors, Table(pd.DataFrame({"label": labels, "is_query": [True] * 10})))
    with pytest.raises(InputError, match="no row with is_query"):
        evaluate(vectors, Table(pd.DataFrame({"label": labels, "is_query": [False] * 10, "is_gallery": [True] * 10})))
    with pytest.raises(InputError, match="query labels are int64, gallery labels are <U1"):
        evaluate_arrays(vectors, labels, vectors, labels.astype("<U1"))
    for wrong in (labels * 1.0, labels.astype(float).astype(object), labels + 0j):
        names = f"are of type {wrong.dtype}; all must be integers, or all text"
        with pytest.raises(InputError, match=f"query groups {names}"):
            evaluate_arrays(vectors, labels, vectors, labels, query_groups=wrong, gallery_groups=wrong)
        refused_call(f"query labels {names}", evaluate_arrays, vectors, wrong, vectors, wrong)


def test_an_image_in_two_rows_is_left_out_of_its_own_ranking_by_its_path() -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 4))
    frame = pd.DataFrame({"path": [f"{row}.jpg" for row in range(12)], "label": np.arange(12) % 3})
    in_one_row = Table(frame.assign(is_query=True, is_gallery=True))
    twice = pd.concat([frame.assign(is_query=True, is_gallery=False), frame.assign(is_query=False, is_gallery=True)])
    in_two_rows = Table(twice.reset_index(drop=True))
    expected = evaluate(vectors, in_one_row)
    found = evaluate(np.concatenate([vectors, vectors]), in_two_rows)
    assert found.metrics == expected.metrics
    assert evaluate(np.concatenate([vectors, vectors]), Table(twice.drop(columns="path"))).metrics["recall@1"] == 1.0


def test_cmc_is_recall_at_every_k() -> None:
    vectors, labels = clusters(50, 9)
    labels[7] = 99  # without a positive
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})), recall_at=range(1, 50))
    wanted = [result.metrics[f"recall@{k}"] for k in range(1, 50)]
    np.testing.assert_allclose(result.cmc(49), wanted, rtol=1e-12)
    assert result.cmc(3).tolist() == result.cmc(49)[:3].tolist()
    assert result.first_positive_ranks[7] == 0
    for max_k in (0, 51):
        refused_call(f"max_k = {max_k} is out of range; use 1 to 50", result.cmc, max_k)


def test_an_evaluation_without_ranks_has_no_cmc() -> None:
    bare = Evaluation({"mAP": 1.0}, "other", 1, 5, 0, {"mAP": np.ones(1)}, np.arange(1))
    refused_call("first_positive_ranks is empty", bare.cmc, 3)
    with pytest.raises(InputError, match=r"max_k = 1\.5 is out of range"):
        bare.cmc(1.5)  # type: ignore[arg-type]


def test_levels_come_from_fine_to_coarse() -> None:
    frame = pd.DataFrame({"label": [0], "coarse_2": [0], "coarse": [0]})
    assert coarse_columns(Table(frame)) == ["coarse", "coarse_2"]
