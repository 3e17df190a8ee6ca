"""The protocol of the Met dataset, against its definition in loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.evaluation import benchmark_protocols, evaluate_met
from vicinal.evaluation.benchmark_protocols import NUM_NEIGHBORS, TEMPERATURES
from vicinal.utils.errors import InputError


def problem(seed: int = 0, num_classes: int = 25, noise: float = 0.9) -> tuple[np.ndarray, Table]:
    """A gallery of one to four images per class, and queries of which a third have no match."""
    rng = np.random.default_rng(seed)
    gallery = np.repeat(np.arange(num_classes), rng.integers(1, 5, num_classes))
    queries = np.where(rng.random(60) < 1 / 3, -1, rng.integers(0, num_classes, 60))
    labels = np.concatenate([gallery, queries])
    columns = {
        "label": labels,
        "is_gallery": np.arange(len(labels)) < len(gallery),
        "query_set": [*[""] * len(gallery), *["val", "test"] * 30],
    }
    frame = pd.DataFrame(columns).assign(is_query=lambda frame: ~frame["is_gallery"])
    centers = np.append(rng.normal(size=(num_classes, 8)), np.zeros((1, 8)), axis=0)  # the last one is label -1
    vectors = centers[labels] + noise * rng.normal(size=(len(labels), 8))
    order = rng.permutation(len(labels))
    return vectors[order], Table(frame.iloc[order].reset_index(drop=True))


def classify(vectors: np.ndarray, table: Table, part: str, k: int, t: float) -> list[tuple[float, bool, bool]]:
    """The confidence of each query, whether its class is right, and whether it has a match."""
    frame = table.frame
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    gallery = np.flatnonzero(frame["is_gallery"])
    num_classes = frame["label"][gallery].nunique()
    found = []
    for row in np.flatnonzero(frame["query_set"] == part):
        scores = sorted(((float(unit[row] @ unit[other]), frame["label"][other]) for other in gallery), reverse=True)
        best: dict[int, float] = {}
        for score, label in scores[:k]:
            best[label] = max(score, best.get(label, -1))
        logits = [*(t * score for score in best.values()), *[0.0] * (num_classes - len(best))]
        winner = max(best, key=best.__getitem__)
        confidence = np.exp(t * best[winner] - np.logaddexp.reduce(logits))
        found.append((confidence, winner == frame["label"][row], frame["label"][row] >= 0))
    return found


def global_average_precision(queries: list[tuple[float, bool, bool]]) -> float:
    total = num_right = 0.0
    for rank, (_, is_right, _) in enumerate(sorted(queries, key=lambda query: (-query[0], query[1])), 1):
        if is_right:
            num_right += 1
            total += num_right / rank
    return total / sum(has_match for _, _, has_match in queries)


def test_the_metrics_are_their_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, temperatures = (1, 3, 10, 50), (0.1, 1.0, 10.0, 50.0)  # of the published grid
    assert {*numbers} < {*NUM_NEIGHBORS}
    assert {*temperatures} < {*TEMPERATURES}
    monkeypatch.setattr(benchmark_protocols, "NUM_NEIGHBORS", numbers)
    monkeypatch.setattr(benchmark_protocols, "TEMPERATURES", temperatures)
    vectors, table = problem()
    found = evaluate_met(vectors, table)
    # Temperatures at which float64 cannot tell confidences apart are left to the implementation.
    grid = [(k, t) for k in numbers for t in temperatures]
    gaps = {each: global_average_precision(classify(vectors, table, "val", *each)) for each in grid}
    best = max(gaps.values())
    k, t = next(each for each in grid if gaps[each] > best - 1e-12)
    test = classify(vectors, table, "test", k, t)
    matched = [query for query in test if query[2]]
    num_without = 30 - len(matched)
    assert found.protocol == f"nearest-neighbor classifier, K = {k}, t = {t:g}, {num_without} without a match"
    assert found.metrics == {
        "GAP": pytest.approx(global_average_precision(test)),
        "GAP-": pytest.approx(global_average_precision(matched)),
        "ACC": pytest.approx(np.mean([is_right for _, is_right, _ in matched])),
    }
    assert 0.3 < found.metrics["GAP"] < found.metrics["GAP-"] < 1
    assert found.num_queries == 30
    assert found.query_indices.tolist() == np.flatnonzero(table.frame["query_set"] == "test").tolist()
    for name, values in found.per_query.items():
        assert np.isnan(values).sum() == num_without
        assert np.nanmean(values) == pytest.approx(found.metrics[name])


def test_equally_confident_queries_are_ordered_to_the_disadvantage() -> None:
    frame = pd.DataFrame({"label": [1, 1, 1, -1], "query_set": ["", "val", "test", "test"]})
    sides = {"is_query": [False, True, True, True], "is_gallery": [True, False, False, False]}
    found = evaluate_met(np.ones((4, 2)), Table(frame.assign(**sides)))
    assert found.metrics == {"GAP": 0.5, "GAP-": 1.0, "ACC": 1.0}


def test_bad_input() -> None:
    vectors, table = problem()
    frame = table.frame
    with pytest.raises(InputError, match="3 embeddings, but a table of"):
        evaluate_met(vectors[:3], table)
    for changed, message in (
        (frame.drop(columns="query_set"), "no column 'query_set', which the protocol of met needs"),
        (
            frame.assign(label=frame["label"].astype(str)),
            "the labels are text; in the protocol of met they are integers",
        ),
        (frame.assign(query_set="test"), "no query of the set val has a match"),
        (frame.assign(label=frame["label"].where(frame["query_set"] != "test", -1)), "no query of the set test has a"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate_met(vectors, Table(changed))
