"""Recall and latency of an index, compared with exact search."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from vicinal.retrieval.index.interface import ImageIndex
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

TOLERANCE = 1e-5  # of a similarity; a match that is as near as the last of the exact ones counts
LOG_SECONDS = 10.0
NUM_CHECKED, MIN_RECALL = 50, 0.99  # queries that check a new graph, and the recall it needs


@dataclass(frozen=True)
class Verification:
    """Recall and latency of an index, for vectors of the index as queries, of which none finds itself.

    `recall_between` is the recall for as many queries halfway between two images, where queries of other classes may
    lie: a graph of many nearly identical images finds each of them, but not queries far from all.
    """

    k: int  # number of neighbors per query
    num_queries: int
    num_images: int  # with which they were compared exactly
    recall: float  # of the k nearest, the fraction that the index finds, a mean over the queries
    recall_between: float
    min_recall: float  # of the worst query
    latency_median_ms: float  # of one query, as the caller sees it, including the round trip to a database
    latency_p95_ms: float  # that 95 % of the queries stay below
    exact_seconds: float  # duration of the exact search for all queries, including reading all vectors

    def to_dict(self) -> dict[str, float]:
        return {
            f"recall@{self.k}": self.recall,
            f"recall_between@{self.k}": self.recall_between,
            f"min_recall@{self.k}": self.min_recall,
            "latency_median_ms": self.latency_median_ms,
            "latency_p95_ms": self.latency_p95_ms,
            "exact_seconds": self.exact_seconds,
            "queries": self.num_queries,
            "images": self.num_images,
        }

    def __str__(self) -> str:
        return "\n".join(
            f"{name:20s} {value:.4g}" if isinstance(value, float) else f"{name:20s} {value:,}"
            for name, value in self.to_dict().items()
        )


def verify_index(index: ImageIndex, num_queries: int = 100, k: int = 10, seed: int = 0) -> Verification:
    """Compare an index with exact search, for some of its own vectors as queries.

    The exact search reads all vectors once, in blocks: it needs little memory, and time that grows with the index.
    """
    size = index.count(at_most=max(k, num_queries) + 1)
    if size < 2:
        raise InputError(f"the index has {size} images; at least two are needed to compare searches")
    k = min(k, size - 1)
    generator = np.random.default_rng(seed)
    query_ids = np.sort(index.sample_ids(min(num_queries, size), generator))
    queries, num_stored = index.vectors_of(query_ids), len(query_ids)
    queries = np.concatenate([queries, _midpoints(queries, generator)])
    query_ids = np.concatenate([query_ids, np.full(num_stored, -1)])
    index.search(queries[:1], k + 1)  # connections are made and caches filled
    neighbor_ids, seconds = np.empty((len(queries), k), np.int64), np.empty(len(queries))
    for row, vector in enumerate(queries):
        start = time.perf_counter()
        ids = index.search(vector[None], k + 1).ids[0]
        seconds[row] = time.perf_counter() - start
        neighbor_ids[row] = ids[np.argsort(ids == query_ids[row], kind="stable")][:k]
    start = time.perf_counter()
    kth_scores, scores, num_images = _exact_scores(index, queries, query_ids, neighbor_ids, k)
    exact_seconds = time.perf_counter() - start
    recalls = (scores >= kth_scores[:, None] - TOLERANCE).mean(axis=1)
    milliseconds = 1000 * seconds
    return Verification(
        k, num_stored, num_images, float(recalls[:num_stored].mean()), float(recalls[num_stored:].mean()),
        float(recalls[:num_stored].min()), float(np.median(milliseconds)),
        float(np.percentile(milliseconds, 95)), exact_seconds,
    )  # fmt: skip


def warn_of_low_recall(index: ImageIndex) -> None:
    """Log that an approximate index finds less than it should, for a sample of queries."""
    if index.count(at_most=2) < 2:
        return
    found = verify_index(index, num_queries=NUM_CHECKED)
    recall = min(found.recall, found.recall_between)
    if recall < MIN_RECALL:
        log(
            f"warning: {index.kind} finds {100 * recall:.1f} % of the {found.k} nearest images of sample queries, "
            "perhaps as many images are nearly identical: "
            "--kind exact or sq8 finds them all, `vicinal clean` the duplicates"
        )


def _midpoints(vectors: Floats, generator: np.random.Generator) -> Floats:
    """Unit vectors halfway between each vector and another one."""
    sums = vectors + vectors[np.roll(generator.permutation(len(vectors)), 1)]
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), vectors).astype(np.float32)


def _exact_scores(
    index: ImageIndex, queries: Floats, query_ids: Integers, found: Integers, k: int
) -> tuple[Floats, Floats, int]:
    """The k-th best score of each query, the scores of the given neighbors, and the number of images."""
    best = np.full((len(queries), k), -np.inf, np.float32)
    scores, num_images, last_log = np.full(found.shape, -np.inf, np.float32), 0, time.monotonic()
    for ids, vectors in index.blocks():
        products = queries @ vectors.T
        positions = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
        is_here = ids[positions] == found
        scores = np.where(is_here, np.take_along_axis(products, positions, axis=1), scores)
        products[ids[None, :] == query_ids[:, None]] = -np.inf
        best = -np.partition(-np.hstack([best, products]), k - 1, axis=1)[:, :k]
        num_images += len(ids)
        if time.monotonic() - last_log > LOG_SECONDS:
            log(f"compared with {num_images:,} images")
            last_log = time.monotonic()
    return best.min(axis=1), scores, num_images
