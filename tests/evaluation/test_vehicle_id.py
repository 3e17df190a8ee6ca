from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.vehicle_id import evaluate_vehicle_id, one_of_each


def vehicles(seed: int = 0) -> tuple[np.ndarray, Table]:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(12), rng.integers(2, 7, 12)))
    vectors = rng.standard_normal((12, 6))[labels] + 1.2 * rng.standard_normal((len(labels), 6))
    return vectors, Table(pd.DataFrame({"label": labels}))


def test_equals_brute_force_on_each_draw() -> None:
    vectors, table = vehicles()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = evaluate_vehicle_id(vectors, table, repeats=5, seed=3)
    assert len(found.repetitions) == 5
    for run in found.repetitions:
        gallery = np.setdiff1d(np.arange(len(table)), run.query_rows)
        assert sorted(table.labels[gallery]) == list(range(12))
        assert (run.queries, run.gallery) == (len(table) - 12, 12)
        places = []
        for query in run.query_rows:
            order = gallery[np.argsort(-(unit[gallery] @ unit[query]))]
            places.append(1 + table.labels[order].tolist().index(table.labels[query]))
        assert run.metrics["recall@1"] == pytest.approx(np.mean([place <= 1 for place in places]))
        assert run.metrics["recall@5"] == pytest.approx(np.mean([place <= 5 for place in places]))
        assert run.metrics["mAP"] == pytest.approx(np.mean([1 / place for place in places]))


def test_repetitions_are_averaged() -> None:
    vectors, table = vehicles()
    found = evaluate_vehicle_id(vectors, table, repeats=4)
    values = [run.metrics["recall@1"] for run in found.repetitions]
    assert len(set(values)) > 1
    assert found.metrics["recall@1"] == pytest.approx(np.mean(values))
    assert found.deviations["recall@1"] == pytest.approx(np.std(values, ddof=1))
    loaded = json.loads(json.dumps(found.to_dict()))
    assert loaded["protocol"] == "one random gallery image a class, 4 times"
    assert loaded["deviations"] == found.deviations
    head, first, *_ = str(found).splitlines()
    assert head == f"one random gallery image a class, 4 times: {len(table) - 12} queries, 12 gallery images"
    wanted = f"{100 * found.metrics['recall@1']:6.2f} % ± {100 * found.deviations['recall@1']:.2f}"
    assert first == f"recall@1      {wanted}"


def test_seeds_decide() -> None:
    vectors, table = vehicles()
    one, same, other = (evaluate_vehicle_id(vectors, table, 3, seed) for seed in (0, 0, 1))
    assert one.metrics == same.metrics != other.metrics


def test_every_image_has_the_same_chance() -> None:
    labels, rng = np.array([0, 1, 1, 0, 0, 2]), np.random.default_rng(0)
    chosen = np.mean([one_of_each(labels, rng) for _ in range(6000)], axis=0)
    np.testing.assert_allclose(chosen, [1 / 3, 1 / 2, 1 / 2, 1 / 3, 1 / 3, 1], atol=0.03)


def test_sides_of_the_table_do_not_count() -> None:
    vectors, table = vehicles()
    marked = Table(table.frame.assign(is_query=True, is_gallery=False))
    assert evaluate_vehicle_id(vectors, marked, 2).metrics == evaluate_vehicle_id(vectors, table, 2).metrics


def test_what_to_be_wary_of_is_told() -> None:
    _, table = vehicles()
    collapsed = evaluate_vehicle_id(np.ones((len(table), 3)), table, repeats=3)
    queries = len(table) - 12
    assert collapsed.to_dict()["ties"] == queries
    assert str(collapsed).splitlines()[0].endswith(f"({queries} positives tied with other images)")
    groups = np.random.default_rng(0).integers(0, 3, len(table))
    found = evaluate_vehicle_id(vehicles()[0], Table(table.frame.assign(group=groups)), repeats=3)
    without = [run.without_positive for run in found.repetitions]
    assert found.to_dict()["without_positive"] == max(without) > min(without)


def test_bad_input() -> None:
    vectors, table = vehicles()
    with pytest.raises(InputError, match="repeats is 1; it must be a whole number, at least 2"):
        evaluate_vehicle_id(vectors, table, repeats=1)
    with pytest.raises(InputError, match="every class has one image, which goes to the gallery"):
        evaluate_vehicle_id(vectors[:3], Table(pd.DataFrame({"label": [1, 2, 3]})))
    with pytest.raises(InputError, match="seed is -1"):
        evaluate_vehicle_id(vectors, table, seed=-1)
    with pytest.raises(InputError, match="recall@13 is impossible with 12 gallery images"):
        evaluate_vehicle_id(vectors, table, recall_at=[13])
    with pytest.raises(InputError, match="no column 'label'"):
        evaluate_vehicle_id(vectors, Table(pd.DataFrame(index=range(len(vectors)))))
