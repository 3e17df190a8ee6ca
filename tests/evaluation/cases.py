"""Embeddings and labels to evaluate, scores to compare, and metrics computed from sorted lists."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation import Evaluation


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


def brute_force(vectors, labels, is_query, is_gallery, groups, recall_at, coarse=None) -> tuple[dict[str, float], int]:
    """Sort everything in float64 and compute the metrics from the list of relevances."""
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
        rows.setdefault("positives_recall@2", []).append(sum(hits[:2]) / total)
        rows.setdefault("mAP@2", []).append(sum(precisions[:2]) / min(2, total))
        rows.setdefault("MRR", []).append(1 / (hits.index(True) + 1))
    return {name: float(np.mean(values)) for name, values in rows.items()}, without


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


def key_scores(keys: np.ndarray) -> np.ndarray:
    """The scores that ranking keys were made of."""
    bits = (keys >> 32).astype(np.int32)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return np.float32(0) - bits.view(np.float32)
