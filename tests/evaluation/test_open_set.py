"""Open-set identification: compared with loops over the definitions in float64, and with scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from tests.evaluation.cases import pooled
from vicinal.data import Table
from vicinal.evaluation import fnir_at_fpir, identification_curve, open_set_auroc, open_set_scores
from vicinal.retrieval import by_class as module
from vicinal.utils.errors import InputError


def clusters(seed: int, classes: int = 13, **columns: object) -> tuple[np.ndarray, Table]:
    """Embeddings in noisy clusters of unequal sizes, in no order, with singletons and duplicates."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), rng.integers(1, 6, classes)))
    vectors = rng.normal(size=(classes, 4))[labels] + 0.7 * rng.normal(size=(len(labels), 4))
    vectors[1] = vectors[0]
    frame = pd.DataFrame({"label": labels})
    if "group" in columns:
        frame["group"] = rng.integers(-1, 3, len(labels))
    if "sides" in columns:
        frame["is_query"] = rng.random(len(labels)) < 0.6
        frame["is_gallery"] = rng.random(len(labels)) < 0.7
    return vectors, Table(frame)


def value_of(best: dict[int, float], score: str) -> float:
    first, second = sorted([*best.values(), -2.0], reverse=True)[:2]
    return first if score == "similarity" else first - second


def reference(vectors: np.ndarray, table: Table, score: str, pooling: str = "best") -> tuple[list, list]:
    """Known queries as (score, is right), and the scores of unknown ones, by loops over images and classes."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    frame, known, unknown = table.frame, [], []
    everything = pd.Series(True, index=frame.index)
    is_query, is_gallery = frame.get("is_query", everything), frame.get("is_gallery", everything)
    group, labels = frame.get("group", pd.Series(-1, index=frame.index)).tolist(), frame["label"].tolist()
    gallery = np.flatnonzero(is_gallery).tolist()
    for query in np.flatnonzero(is_query).tolist():
        found: dict[int, list[int]] = {}
        for row in gallery:
            same = labels[row] == labels[query]
            if row != query and not (same and group[row] == group[query] >= 0):
                found.setdefault(labels[row], []).append(row)
        best = {name: pooled(unit[rows], unit[query], pooling) for name, rows in found.items()}
        own = best.get(labels[query])
        rest = {name: value for name, value in best.items() if name != labels[query]}
        if own is not None:
            known.append((value_of(best, score), own == max(best.values())))
        unknown.append(value_of(rest, score))
    return known, unknown


@pytest.mark.parametrize("score", ["similarity", "margin"])
@pytest.mark.parametrize("columns", [{}, {"group": True}, {"sides": True}])
@pytest.mark.parametrize("pooling", ["best", "mean", "centroid"])
def test_scores_equal_loops_over_images_and_classes(
    pooling: str, score: str, columns: dict[str, bool], monkeypatch
) -> None:
    vectors, table = clusters(3, **columns)
    known, unknown = reference(vectors, table, score, pooling)
    for rows in (1024, 7):
        monkeypatch.setattr(module, "BLOCK_ROWS", 256 if rows == 7 else 4096)
        monkeypatch.setattr(module, "MAX_ROWS", rows)
        monkeypatch.setattr(module, "MIN_ROWS", min(rows, 64))
        found = open_set_scores(vectors, table, score, pooling)
        np.testing.assert_allclose(found.known, [value for value, _ in known], atol=1e-6)
        assert found.is_right.tolist() == [right for _, right in known]
        np.testing.assert_allclose(found.unknown, unknown, atol=1e-6)
        assert len(found.known_classes) == len(known) < len(found.unknown_classes) == len(unknown)


def test_blocks_of_the_gallery_give_the_same_scores(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    table = Table(pd.DataFrame({"label": rng.integers(0, 90, 700)}))
    vectors = rng.normal(size=(700, 8)).astype(np.float32)
    whole = open_set_scores(vectors, table)
    monkeypatch.setattr(module, "BLOCK_ROWS", 256)
    tiled = open_set_scores(vectors, table)
    assert (whole.known == tiled.known).all()
    assert (whole.unknown == tiled.unknown).all()


def test_metrics_equal_scikit_learn_and_their_definitions() -> None:
    vectors, table = clusters(5)
    scores = open_set_scores(np.round(vectors, 0), table)  # with ties
    is_known = np.repeat([1, 0], [len(scores.known), len(scores.unknown)])
    values = np.concatenate([scores.known, scores.unknown])
    assert open_set_auroc(scores) == pytest.approx(roc_auc_score(is_known, values), abs=1e-12)
    for fpir in (0.01, 0.1, 0.29, 0.5, 0.99):
        candidates = [np.inf, *scores.unknown, *np.nextafter(scores.unknown, np.float32(2))]
        threshold = min(each for each in candidates if (scores.unknown >= each).mean() <= fpir)
        missed = 1 - np.mean((scores.known >= threshold) & scores.is_right)
        assert fnir_at_fpir(scores, fpir) == pytest.approx(missed, abs=1e-12)
    curve = identification_curve(scores)
    for row in curve.itertuples():
        assert row.fpir == pytest.approx(np.mean(scores.unknown >= np.float32(row.threshold)), abs=1e-12)
        assert row.dir == pytest.approx(
            np.mean((scores.known >= np.float32(row.threshold)) & scores.is_right), abs=1e-12
        )


def test_a_tie_with_another_class_is_not_right() -> None:
    scores = open_set_scores(np.ones((4, 2)), Table(pd.DataFrame({"label": [0, 0, 1, 1]})))
    assert not scores.is_right.any()
    assert open_set_auroc(scores) == 0.5


@pytest.mark.parametrize(
    ("labels", "score", "message"),
    [
        ([0, 0, 0], "similarity", "the gallery has 1 classes; queries of unknown classes need 1 besides their own"),
        ([0, 0, 1], "margin", "the gallery has 2 classes; queries of unknown classes need 2 besides their own"),
        ([0, 0, 1], "distance", "score = 'distance' is unknown; use similarity or margin"),
        ([0, 0, 1, 1], "similarity", "3 embeddings, but a table of 4 rows"),
    ],
)
def test_bad_input_is_told(labels: list[int], score: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_set_scores(np.eye(3), Table(pd.DataFrame({"label": labels})), score)
