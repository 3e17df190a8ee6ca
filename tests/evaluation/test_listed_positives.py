"""mAP@k with listed positives, against the formula in loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.evaluation import evaluate_listed_positives
from vicinal.utils.errors import InputError


def problem(seed: int = 0, num_queries: int = 9, num_gallery: int = 40) -> tuple[np.ndarray, Table]:
    """Random embeddings in a random order of rows, and one to twelve positives per query."""
    rng = np.random.default_rng(seed)
    is_query = rng.permutation(np.arange(num_queries + num_gallery) < num_queries)
    ids = np.array([f"{number:016x}" for number in range(len(is_query))])
    positives = [
        " ".join(rng.choice(ids[~is_query], rng.integers(1, 13), replace=False)) if each else "" for each in is_query
    ]
    frame = pd.DataFrame({"image_id": ids, "positives": positives, "is_query": is_query, "is_gallery": ~is_query})
    return rng.normal(size=(len(frame), 5)), Table(frame)


def average_precision(vectors: np.ndarray, table: Table, row: int, k: int) -> float:
    """(1 / min(R, k)) times the sum over ranks r up to k of P(r) rel(r)."""
    frame = table.frame
    scores = {
        frame["image_id"][other]: vectors[row] @ vectors[other] / np.linalg.norm(vectors[other])
        for other in np.flatnonzero(frame["is_gallery"])
    }
    ranking, positives = sorted(scores, key=lambda name: -scores[name]), frame["positives"][row].split()
    total = num_found = 0.0
    for rank, name in enumerate(ranking[:k], 1):
        if name in positives:
            num_found += 1
            total += num_found / rank
    return total / min(len(positives), k)


@pytest.mark.parametrize("k", [1, 3, 10, 100])
def test_the_metric_is_its_formula(k: int) -> None:
    vectors, table = problem()
    found = evaluate_listed_positives(vectors, table, k)
    rows = np.flatnonzero(table.frame["is_query"])
    expected = [average_precision(vectors, table, row, k) for row in rows]
    np.testing.assert_allclose(found.per_query[f"mAP@{k}"], expected)
    assert found.metrics == {f"mAP@{k}": pytest.approx(np.mean(expected))}
    assert found.query_indices.tolist() == rows.tolist()
    assert (found.num_queries, found.num_gallery, found.num_ties) == (9, 40, 0)


def test_each_set_of_queries_has_its_own_metric() -> None:
    vectors, table = problem()
    rows = np.flatnonzero(table.frame["is_query"])
    sets = np.full(len(table), "", dtype=object)
    sets[rows] = np.array(["public", "private"])[np.arange(9) % 2]
    found = evaluate_listed_positives(vectors, Table(table.frame.assign(query_set=sets)))
    whole = evaluate_listed_positives(vectors, table).per_query["mAP@100"]
    assert list(found.metrics) == ["private/mAP@100", "public/mAP@100"]
    assert found.metrics["public/mAP@100"] == pytest.approx(whole[::2].mean())
    assert found.metrics["private/mAP@100"] == pytest.approx(whole[1::2].mean())


def test_bad_input() -> None:
    vectors, table = problem()
    frame, row = table.frame, int(np.flatnonzero(table.frame["is_query"])[0])
    name = frame["image_id"][row]
    with pytest.raises(InputError, match="9 embeddings, but a table of 49 rows"):
        evaluate_listed_positives(vectors[:9], table)
    with pytest.raises(InputError, match="no column 'positives'; listed positives need image_id, positives, is_query"):
        evaluate_listed_positives(vectors, Table(frame.drop(columns="positives")))
    for positives, message in (
        ("", f"row {row}: the query {name} has no positives; every query needs some there"),
        (name, f"row {row}: the query {name} has the positive '{name}', not in the gallery"),
    ):
        changed = frame["positives"].where(frame.index != row, positives)
        with pytest.raises(InputError, match=message):
            evaluate_listed_positives(vectors, Table(frame.assign(positives=changed)))
