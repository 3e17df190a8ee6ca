"""The protocols of the Met dataset, of listed positives and of VehicleID, against their definitions in loops."""

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.evaluation import benchmark_protocols, evaluate_listed_positives, evaluate_met
from vicinal.evaluation.benchmark_protocols import NUM_NEIGHBORS, TEMPERATURES, evaluate_vehicle_id
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
    gallery, labels = np.flatnonzero(frame["is_gallery"]), frame["label"].to_numpy()
    num_classes = len(np.unique(labels[gallery]))
    found = []
    for row in np.flatnonzero(frame["query_set"] == part):
        scores = sorted(((float(unit[row] @ unit[other]), labels[other]) for other in gallery), reverse=True)
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
    for changed, message in (
        (frame.drop(columns="query_set"), "no column 'query_set', which the protocol of met needs"),
        (frame.assign(label=frame["label"].astype(str)), "the labels are text; in the protocol of met they are"),
        (frame.assign(query_set="test"), "no query of the set val has a match"),
        (frame.assign(label=frame["label"].where(frame["query_set"] != "test", -1)), "no query of the set test has a"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate_met(vectors, Table(changed))


def listed_problem(seed: int = 0, num_queries: int = 9, num_gallery: int = 40) -> tuple[np.ndarray, Table]:
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
    vectors, table = listed_problem()
    found = evaluate_listed_positives(vectors, table, k)
    rows = np.flatnonzero(table.frame["is_query"])
    expected = [average_precision(vectors, table, row, k) for row in rows]
    np.testing.assert_allclose(found.per_query[f"mAP@{k}"], expected)
    assert found.metrics == {f"mAP@{k}": pytest.approx(np.mean(expected))}
    assert found.query_indices.tolist() == rows.tolist()
    assert (found.num_queries, found.num_gallery, found.num_ties) == (9, 40, 0)


def test_each_set_of_queries_has_its_own_metric() -> None:
    vectors, table = listed_problem()
    rows = np.flatnonzero(table.frame["is_query"])
    sets = np.full(len(table), "", dtype=object)
    sets[rows] = np.array(["public", "private"])[np.arange(9) % 2]
    found = evaluate_listed_positives(vectors, Table(table.frame.assign(query_set=sets)))
    whole = evaluate_listed_positives(vectors, table).per_query["mAP@100"]
    assert list(found.metrics) == ["private/mAP@100", "public/mAP@100"]
    assert found.metrics["public/mAP@100"] == pytest.approx(whole[::2].mean())
    assert found.metrics["private/mAP@100"] == pytest.approx(whole[1::2].mean())


def test_bad_lists_of_positives() -> None:
    vectors, table = listed_problem()
    frame, row = table.frame, int(np.flatnonzero(table.frame["is_query"])[0])
    name = frame["image_id"][row]
    with pytest.raises(InputError, match="no column 'positives'; listed positives need image_id, positives, is_query"):
        evaluate_listed_positives(vectors, Table(frame.drop(columns="positives")))
    for positives, message in (
        ("", f"row {row}: the query {name} has no positives; every query needs some in it"),
        (name, f"row {row}: the query {name} has the positive '{name}', not in the gallery"),
    ):
        changed = frame["positives"].where(frame.index != row, positives)
        with pytest.raises(InputError, match=message):
            evaluate_listed_positives(vectors, Table(frame.assign(positives=changed)))


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
    runs = [dict(zip(run.query_indices, run.per_query["mAP"], strict=True)) for run in found.repetitions]
    scores = [np.mean([run[image] for run in runs if image in run]) for image in found.query_indices]
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


def test_bad_input_of_vehicle_id() -> None:
    vectors, table = vehicles()
    with pytest.raises(InputError, match="num_repeats = 1 is invalid; use an integer from 2 up"):
        evaluate_vehicle_id(vectors, table, num_repeats=1)
    with pytest.raises(InputError, match="every class has one image, which goes to the gallery"):
        evaluate_vehicle_id(vectors[:3], Table(pd.DataFrame({"label": [1, 2, 3]})))
    with pytest.raises(InputError, match="seed = -1 is invalid"):
        evaluate_vehicle_id(vectors, table, seed=-1)
    with pytest.raises(InputError, match="recall@13 is out of range with 12 gallery images"):
        evaluate_vehicle_id(vectors, table, recall_at=[13])
