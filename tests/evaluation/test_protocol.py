from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from tests.evaluation.cases import clusters
from vicinal.data.table import Table
from vicinal.evaluation import evaluate, evaluate_arrays, protocol
from vicinal.retrieval.scores import ScoreBuffer, UnitVectors
from vicinal.utils.errors import InputError


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
        vectors, names, vectors, names, exclude_self=np.arange(60), query_groups=groups, gallery_groups=groups
    )
    assert by_arrays.metrics == by_table.metrics


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


def test_everything_is_computed_on_the_device_of_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    build = protocol.UnitVectors

    def built(array: np.ndarray, name: str, device: object = None) -> UnitVectors:
        made.append(device)
        return build(array, name)

    monkeypatch.setattr(protocol, "UnitVectors", built)
    evaluate_arrays(np.eye(2), ["a", "b"], np.eye(2), ["a", "b"])
    assert made == [None, torch.device("cpu")]


def test_bad_input() -> None:
    vectors, labels = clusters(10, 2)
    table = Table(pd.DataFrame({"label": labels}))
    with pytest.raises(InputError, match="recall@10 is out of range with 9 gallery images"):
        evaluate(vectors, table, recall_at=(1, 10))
    for chunk in (0, -1, 2.5, "3"):
        with pytest.raises(InputError, match=f"chunk_size = {chunk!r} is invalid; use an integer >= 1"):
            evaluate(vectors, table, chunk_size=chunk)
    with pytest.raises(InputError, match="0 queries and 10 gallery images"):
        evaluate_arrays(vectors[:0], labels[:0], vectors, labels)
    with pytest.raises(InputError, match=r"unknown metric 'recal@1'; use recall@K, .* MRR, with a number for K"):
        evaluate(vectors, table, metrics=["recal@1"])
    with pytest.raises(InputError, match=r"metrics is 'MRR'; give a list of names, such as \['MRR'\]"):
        evaluate(vectors, table, metrics="MRR")
    with pytest.raises(InputError, match="the table has no column 'coarse'"):
        evaluate(vectors, table, hierarchy=True)
    with pytest.raises(InputError, match="coarse/recall@1: no query has another image of its coarse label"):
        evaluate(vectors, Table(pd.DataFrame({"label": labels, "coarse": range(10)})), hierarchy=True)
    with pytest.raises(InputError, match="no column 'label'"):
        evaluate(vectors, Table(pd.DataFrame({"path": [f"{row}.png" for row in range(10)]})))
    with pytest.raises(InputError, match="none of the 10 queries has another image of its class"):
        evaluate(vectors, Table(pd.DataFrame({"label": range(10)})))
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
    for wrong in (labels * 1.0, labels.astype(float).astype(object), labels + 0j):
        names = f"are of type {wrong.dtype}; all must be integers, or all text"
        with pytest.raises(InputError, match=f"query groups {names}"):
            evaluate_arrays(vectors, labels, vectors, labels, query_groups=wrong, gallery_groups=wrong)
        with pytest.raises(InputError, match=f"query labels {names}"):
            evaluate_arrays(vectors, wrong, vectors, wrong)
    for side, name in ((1, "query 7"), (2, "gallery vector 7")):
        arrays = [vectors, broken] if side == 2 else [broken, vectors]
        with pytest.raises(InputError, match=f"{name} holds NaN"):
            evaluate_arrays(arrays[0], labels, arrays[1], labels)


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
