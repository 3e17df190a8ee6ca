"""Embeddings and labels to evaluate, scores to compare, and metrics computed from sorted lists."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from vicinal.data import Table
from vicinal.evaluation import Evaluation


def clusters(rows: int, classes: int, seed: int = 0, dim: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    vectors = rng.standard_normal((classes, dim))[labels] + 1.5 * rng.standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def scores_of_hits(hits: list[bool], recall_at: Sequence[int] = (1, 2), k: int = 2) -> dict[str, float]:
    """The metrics by their definitions, from which images of a ranking are of the class; none without a positive."""
    total = sum(hits)
    if not total:
        return {}
    precisions = [hit * sum(hits[: rank + 1]) / (rank + 1) for rank, hit in enumerate(hits)]
    return {f"recall@{each}": float(any(hits[:each])) for each in recall_at} | {
        "mAP@R": sum(precisions[:total]) / total,
        "R-precision": sum(hits[:total]) / total,
        "mAP": sum(precisions) / total,
        f"precision@{k}": sum(hits[:k]) / k,
        f"positives_recall@{k}": sum(hits[:k]) / total,
        f"mAP@{k}": sum(precisions[:k]) / min(k, total),
        "MRR": 1 / (hits.index(True) + 1),
    }


def means(rows: list[dict[str, float]]) -> dict[str, float]:
    """Of the queries that have scores."""
    found = [row for row in rows if row]
    return {name: float(np.mean([row[name] for row in found])) for name in (found or [{}])[0]}


def brute_force(vectors, labels, is_query, is_gallery, groups, recall_at, coarse=None) -> tuple[dict[str, float], int]:
    """Sort everything in float64 and compute the metrics from the list of relevances."""
    similarities = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    codes, rows = labels if coarse is None else coarse, []
    for query in np.flatnonzero(is_query):
        gallery = [
            item
            for item in np.flatnonzero(is_gallery)
            if item != query and not (labels[item] == labels[query] and groups[item] == groups[query] != -1)
        ]
        gallery.sort(key=lambda item: (-similarities[query, item], item))
        rows.append(scores_of_hits([codes[item] == codes[query] for item in gallery], recall_at))
    return means(rows), sum(not row for row in rows)


def pooled(unit: np.ndarray, query: np.ndarray, pooling: str) -> float:
    """The similarity of a query to several unit vectors."""
    similarities = sorted(map(float, unit @ query), reverse=True)
    if pooling == "centroid":
        return float(query @ unit.sum(axis=0) / np.linalg.norm(unit.sum(axis=0)))
    return similarities[0] if pooling == "best" else sum(similarities[:2]) / len(similarities[:2])


def scored(query_indices: np.ndarray | None = None, **per_query: np.ndarray) -> Evaluation:
    """An evaluation of which only the scores of single queries matter."""
    number = len(next(iter(per_query.values())))
    return Evaluation(
        metrics={name: float(np.nanmean(values)) for name, values in per_query.items()},
        protocol="leave-one-out",
        num_queries=number,
        num_gallery=number,
        num_without_positive=0,
        per_query=per_query,
        query_indices=np.arange(number) if query_indices is None else query_indices,
    )


def table_of(labels: np.ndarray) -> Table:
    return Table(pd.DataFrame({"label": labels}))


def gapped_scores(seed: int, classes: int = 9) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Labels of unequal classes in no order, and two scores with gaps; one class has no score at all."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), rng.integers(1, 8, classes)))
    first = rng.random(len(labels))
    first[labels == 3] = np.nan
    second = (rng.random(len(labels)) < 0.5).astype(float)
    second[(labels == 3) | (rng.random(len(labels)) < 0.2)] = np.nan
    return labels, {"mAP": first, "recall@1": second}
