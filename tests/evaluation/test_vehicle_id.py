from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vicinal.data.table import Table
from vicinal.evaluation.benchmark_protocols import evaluate_vehicle_id
from vicinal.utils.errors import InputError


def vehicles(seed: int = 0) -> tuple[np.ndarray, Table]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(12), rng.integers(2, 7, 12)))
    vectors = rng.standard_normal((12, 6))[labels] + 1.2 * rng.standard_normal((len(labels), 6))
    return vectors, Table(pd.DataFrame({"label": labels}))


def test_equals_brute_force_on_each_draw() -> None:
    vectors, table = vehicles()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = evaluate_vehicle_id(vectors, table, num_repeats=5, seed=3)
    assert len(found.repetitions) == 5
    for run in found.repetitions:
        gallery = np.setdiff1d(np.arange(len(table)), run.query_indices)
        assert sorted(table.labels[gallery]) == list(range(12))
        assert (run.num_queries, run.num_gallery) == (len(table) - 12, 12)
        ranks = []
        for query in run.query_indices:
            order = gallery[np.argsort(-(unit[gallery] @ unit[query]))]
            ranks.append(1 + table.labels[order].tolist().index(table.labels[query]))
        assert run.metrics["recall@1"] == pytest.approx(np.mean([rank <= 1 for rank in ranks]))
        assert run.metrics["recall@5"] == pytest.approx(np.mean([rank <= 5 for rank in ranks]))
        assert run.metrics["mAP"] == pytest.approx(np.mean([1 / rank for rank in ranks]))


def test_repetitions_are_averaged() -> None:
    vectors, table = vehicles()
    found = evaluate_vehicle_id(vectors, table, num_repeats=4)
    values = [run.metrics["recall@1"] for run in found.repetitions]
    assert len(set(values)) > 1
    assert found.metrics["recall@1"] == pytest.approx(np.mean(values))
    assert found.std["recall@1"] == pytest.approx(np.std(values, ddof=1))
    row = found.to_results().overall().loc["recall@1"]
    assert (row["value"], row["std"], row["num_repeats"]) == (found.metrics["recall@1"], found.std["recall@1"], 4)
    scores = [
        np.mean(
            [
                run.per_query["mAP"][run.query_indices == image]
                for run in found.repetitions
                if image in run.query_indices
            ]
        )
        for image in found.query_indices
    ]
    np.testing.assert_allclose(found.per_query["mAP"], scores)
    head, first, *_ = str(found).splitlines()
    assert head == f"one random gallery image per class, 4 times: {len(scores)} queries, 12 gallery images"
    wanted = f"{100 * found.metrics['recall@1']:6.2f} % ± {100 * found.std['recall@1']:.2f}"
    assert first == f"recall@1      {wanted}"


def test_queries_and_gallery_of_the_table_are_ignored() -> None:
    vectors, table = vehicles()
    marked = Table(table.frame.assign(is_query=True, is_gallery=False))
    found, wanted = (evaluate_vehicle_id(vectors, each, num_repeats=2) for each in (marked, table))
    assert found.metrics == wanted.metrics


def test_bad_input() -> None:
    vectors, table = vehicles()
    with pytest.raises(InputError, match="num_repeats = 1 is invalid; use an integer from 2 up"):
        evaluate_vehicle_id(vectors, table, num_repeats=1)
    with pytest.raises(InputError, match="every class has one image, which goes to the gallery"):
        evaluate_vehicle_id(vectors[:3], Table(pd.DataFrame({"label": [1, 2, 3]})))
    with pytest.raises(InputError, match="seed = -1 is invalid"):
        evaluate_vehicle_id(vectors, table, seed=-1)
    with pytest.raises(InputError, match="recall@13 is out of range with 12 gallery images"):
        evaluate_vehicle_id(vectors, table, recall_at=[13])
    with pytest.raises(InputError, match="no column 'label'"):
        evaluate_vehicle_id(vectors, Table(pd.DataFrame(index=range(len(vectors)))))
